"""The ways to compute attention that are there, and which one a call gets."""

from . import blockwise, fused, reference

IMPLEMENTATIONS = {"reference": reference, "blockwise": blockwise, "fused": fused}


def choose(implementation, wanted, call):
    """(the name of the implementation that a call runs, why each other one does not, by name).

    implementation: a name, or "auto". wanted: "lse", "weights", both or none. call: attention's arguments.
    Raises ValueError if the one that is named cannot give what is wanted.
    """
    reasons = {name: way.cannot(wanted, **call) for name, way in IMPLEMENTATIONS.items()}
    if implementation == "auto":
        name = next(name for name in preferred(call) if reasons[name] is None)
        return name, {n: reason or "slower here" for n, reason in reasons.items() if n != name}
    if reasons[implementation] is not None:
        can = ", ".join(name for name, reason in reasons.items() if reason is None)
        raise ValueError(
            f"implementation: got {implementation!r}, which {reasons[implementation]}, wanted auto or {can}"
        )
    return implementation, {
        n: reason or "not asked for" for n, reason in reasons.items() if n != implementation
    }


def preferred(call):
    """The names in the order in which auto takes them: a single row of scores is no work for tiles."""
    sight = call["sight"]
    hidden = sight.causal or any(rule is not None for rule in (sight.window, *sight[3:]))
    alone = call["q"].shape[-2] == 1 and not hidden
    return ("reference", "blockwise") if alone else ("blockwise", "reference")
