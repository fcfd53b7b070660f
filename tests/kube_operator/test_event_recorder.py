"""Events: one for each transition of a condition."""

from __future__ import annotations

from evenkeel.kube.object_kinds import PARTITION_ASSIGNMENT, TABLE, Object
from evenkeel_operator.kinds import QUIET_CONDITIONS
from evenkeel_operator.kube.event_recorder import transitions


def with_conditions(*entries: tuple[str, str, str]) -> Object:
    conditions = [{"type": t, "status": s, "reason": r, "message": "words"} for t, s, r in entries]
    return {"kind": TABLE.name, "status": {"conditions": conditions}}


def test_transitions_are_events() -> None:
    """Each transition is one Event, a warning if it is bad; an unchanged condition is none."""
    before = with_conditions(("Ready", "True", "AsExpected"), ("Degraded", "False", "AsExpected"))
    after = with_conditions(("Ready", "True", "AsExpected"), ("Degraded", "True", "NoQuorum"))
    [event] = transitions(before, after)
    assert (event.warning, event.reason) == (True, "NoQuorum")
    assert list(transitions(after, after)) == []
    [back] = transitions(after, before)
    assert (back.warning, back.reason) == (False, "Degraded")


def test_the_first_status_has_few_events() -> None:
    """Conditions that are as expected from the start are no Events."""
    fresh = with_conditions(("Ready", "False", "Reconciling"), ("Degraded", "False", "AsExpected"))
    assert [event.reason for event in transitions({}, fresh)] == ["Reconciling"]


def test_a_rebalance_is_one_event() -> None:
    """Progressing and Balanced of one rebalance are one Event; with different reasons they are two."""

    def subject(progressing: str, balanced: str, *reasons: str) -> Object:
        pairs = zip(("Progressing", "Balanced"), (progressing, balanced), reasons, strict=True)
        conditions = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in pairs]
        return {"metadata": {"uid": "u"}, "status": {"conditions": conditions}}

    calm = subject("False", "True", "AsExpected", "AsExpected")
    moving = subject("True", "False", "Rebalancing", "Rebalancing")
    odd = subject("False", "False", "Paused", "SpecInvalid")
    assert [event.message for event in transitions(calm, moving)] == ["Balanced False: Balanced is False"]
    assert [event.message for event in transitions(moving, calm)] == ["Balanced True: Balanced is True"]
    assert len(list(transitions(calm, odd))) == 2


def test_conditions_that_the_owner_reports_are_quiet() -> None:
    """Events of a Table report Ready for all its partitions; those of a PartitionAssignment do not repeat it."""
    after = with_conditions(("Ready", "False", "NoLeader"), ("Accepted", "False", "SpecInvalid"))
    after["kind"] = PARTITION_ASSIGNMENT.name
    assert [event.reason for event in transitions({}, after, quiet=QUIET_CONDITIONS)] == ["SpecInvalid"]
    after["kind"] = TABLE.name
    assert len(list(transitions({}, after, quiet=QUIET_CONDITIONS))) == 2
