"""attn_torch, each implementation by name. It covers the whole contract."""

from parity.subjects import Subject, claim

CLAIMS = {"blockwise": claim(), "reference": claim("-direct")}


def loader(implementation):
    def load():
        from attn_torch import scaled_dot_product_attention

        def run(q, k, v, **options):  # the contract's own signature decides which keywords there are
            return scaled_dot_product_attention(
                q, k, v, return_lse=True, implementation=implementation, **options
            )

        return run

    return load


SUBJECTS = tuple(
    Subject(f"attn_torch[{name}]", "torch", loader(name), claims, exposes_lse=True, block=name)
    for name, claims in CLAIMS.items()
)
