"""The ways to compute attention that are there, and which one a call gets."""

from . import blockwise, fused, reference

IMPLEMENTATIONS = {"reference": reference, "blockwise": blockwise, "fused": fused}
AUTO = ("blockwise", "reference")  # in the order in which auto takes them


def choose(implementation, wanted, call):
    """The name of the implementation that a call runs.

    implementation: a name, or "auto". wanted: "lse", "weights", both or none. call: attention's arguments.
    Raises ValueError if the one that is named cannot give what is wanted.
    """
    for name in AUTO if implementation == "auto" else (implementation,):
        if IMPLEMENTATIONS[name].cannot(wanted, **call) is None:
            return name
    reasons = {name: way.cannot(wanted, **call) for name, way in IMPLEMENTATIONS.items()}
    can = ", ".join(name for name, reason in reasons.items() if reason is None)
    raise ValueError(
        f"implementation: got {implementation!r}, which {reasons[implementation]}, wanted auto or {can}"
    )


def others(chosen, implementation, wanted, call):
    """Why each implementation but the chosen one does not run such a call, by name."""
    idle = "slower here" if implementation == "auto" else "not asked for"
    rest = {name: way for name, way in IMPLEMENTATIONS.items() if name != chosen}
    return {name: way.cannot(wanted, **call) or idle for name, way in rest.items()}
