"""The spec in a table's record has only fields that every store can read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenkeel.model.table import MovementSpec, Table, TableSpec
from evenkeel.reconcile.desired_table import spec_for_record
from evenkeel.versions import FIRST, SUPPORTED
from tests.reconcile.support import table


class NewerMovement(MovementSpec):
    """A column with a field of a later release."""

    gently: bool = False


class NewerSpec(TableSpec):
    """A spec with fields of a later release."""

    purpose: str = "any"
    movement: NewerMovement = NewerMovement()


def spec_of(written: Table, **fields: Any) -> NewerSpec:
    document = written.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return NewerSpec.model_validate_json(msgspec.json.encode({**document, **fields}))


def recorded(spec: TableSpec, version: int) -> dict[str, Any]:
    return msgspec.json.decode(bytes(spec_for_record(spec, version=version)), type=dict[str, Any])


@pytest.mark.parametrize("version", [FIRST, SUPPORTED.newest])
def test_newer_fields_at_their_defaults_are_left_out(version: int) -> None:
    """The record of a table without new fields is identical to that of the first release."""
    written = table(movement={"bytesPerSecond": "1Mi"}, placement={"storeSelector": {"any": "label"}})
    later = {"deletion_policy", "undelete_for"}
    first = written.spec.model_dump_json(by_alias=True, exclude_none=True, exclude=later)
    assert bytes(spec_for_record(spec_of(written), version=version)).decode() == first
    assert bytes(spec_for_record(written.spec, version=version)).decode() == first


def test_newer_fields_wait_until_every_store_knows_them() -> None:
    """New fields that a user set, also nested ones, are written from the cluster version that supports them."""
    spec = spec_of(table(), purpose="archive", movement={"gently": True})
    with_fields = recorded(spec, SUPPORTED.newest)
    assert (with_fields.pop("purpose"), with_fields["movement"].pop("gently")) == ("archive", True)
    assert recorded(spec, FIRST) == with_fields
    TableSpec.model_validate_json(msgspec.json.encode(with_fields))
