"""Row events: what a change did to a row."""

from decimal import Decimal

import pytest

from tidelock.changes.reader import Change, Row
from tidelock.columns import parse_column_type
from tidelock.tables import Table
from tidelock.views.views import RowEvent, View
from tidelock.where import TRUE

pytestmark = pytest.mark.check

COLUMNS = {"id": "bigint", "name": "string", "price": "decimal(18,4)", "rate": "double"}
TABLE = Table("things", {name: parse_column_type(text) for name, text in COLUMNS.items()}, ("id",))
ROW: Row = {"id": 1, "name": "a", "price": Decimal("1.50"), "rate": 0.5}
SHOWN = {"tenant_id": "t", **ROW}


def event(old: Row | None, new: Row | None) -> RowEvent | None:
    found = View(TABLE, TRUE).event_of(Change("things", 5, "t", "1", old=old, new=new))
    return None if found is None else RowEvent(found.operation, found.fields, found.row)


def test_a_new_row_is_an_insert_of_all_fields() -> None:
    assert event(None, ROW) == ("INSERT", ("id", "name", "price", "rate"), SHOWN)


def test_a_changed_row_is_an_update_of_what_changed() -> None:
    new = {**ROW, "rate": None, "name": "b"}
    assert event(ROW, new) == ("UPDATE", ("name", "rate"), {"tenant_id": "t", **new})


def test_a_removed_row_is_a_delete_with_its_key_and_the_last_row() -> None:
    assert event(ROW, None) == ("DELETE", ("id",), SHOWN)


def test_a_change_that_changes_nothing_is_not_an_event() -> None:
    nan = {**ROW, "rate": float("nan")}
    assert event(None, None) is None
    assert event(ROW, dict(ROW)) is None
    assert event(ROW, {**ROW, "price": Decimal("1.5")}) is None
    assert event(nan, {**ROW, "rate": float("nan")}) is None
    assert event(nan, ROW) == ("UPDATE", ("rate",), SHOWN)
    assert event(nan, {**nan, "rate": float("nan"), "name": "b"}) is not None


def test_only_what_is_not_nan_before_and_now_has_changed() -> None:
    found = event({**ROW, "rate": float("nan")}, {**ROW, "rate": float("nan"), "name": "b"})
    assert found is not None
    assert found.fields == ("name",)


def test_a_column_that_a_change_does_not_have_yet_is_null_and_one_that_is_no_more_is_left_out() -> None:
    before = {"name": "a", "gone": 1, "id": 1, "price": Decimal("1.50")}
    found = event(before, ROW)
    assert found is not None
    assert list(found.row) == ["tenant_id", *COLUMNS]
    assert found == ("UPDATE", ("rate",), SHOWN)
    assert event(before, None) == ("DELETE", ("id",), {**SHOWN, "rate": None})


def test_the_change_stays_as_it_was() -> None:
    change = Change("things", 5, "t", "1", old=None, new=dict(ROW))
    View(TABLE, TRUE).event_of(change)
    assert change.new == ROW
