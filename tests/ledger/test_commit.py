"""A commit, decided: nothing about it depends on how requests were grouped."""

import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.recording import HOUR, judged
from tidelock.definitions import parse_definitions
from tidelock.ingest.identity import Salts, identity_digest, same_content
from tidelock.ledger.commit import Collection, Commit, Known, chain_digest, decide
from tidelock.ledger.corrections import Correctable
from tidelock.ledger.rows import event_row, event_tail, numeric_text, row_numbers, row_tail, tail_digest
from tidelock.model import Accepted, Event, Head, Verdict

SALTS = Salts(("new", "old"), 1)
KEYED = parse_definitions({"streams": {"keyed": {"key": "resource_id"}}})
#: where the quantity is in the tail of a row
QUANTITY = 6
EMPTY = Head(0, 0, 0, bytes(32), 1)
# Few keys, times and values, so that duplicates, conflicts and ties are common.
plain = st.fixed_dictionaries(
    {},
    optional={
        "idempotencyKey": st.sampled_from(["a", "b", ""]),
        "ts": st.sampled_from([0, 1, 10**10]),
        "quantity": st.sampled_from(["1", "1.0", "2", "x"]),
        "data": st.sampled_from([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}, 5]),
        "tenantId": st.sampled_from(["t", "u"]),
    },
)
corrections = st.fixed_dictionaries(
    {"op": st.sampled_from(["void", "amend"]), "target": st.sampled_from(["a", "b", "c", "d", "x"])},
    optional={
        "idempotencyKey": st.sampled_from(["b", "c", "d"]),
        "stream": st.sampled_from(["s", "keyed", "other"]),
        "tenantId": st.sampled_from(["t", "u"]),
        "reason": st.sampled_from(["typo", "twice"]),
    },
).flatmap(lambda sent: amendments(sent) if sent["op"] == "amend" else st.just(sent))
keyed = st.fixed_dictionaries({"stream": st.just("keyed"), "resourceId": st.just("r"), "idempotencyKey": st.just("b")})
events = plain | corrections | keyed


def amendments(sent: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    said = {"quantity": st.sampled_from(["1", "2.0"]), "data": st.sampled_from([{"a": 1, "b": 2}, {"b": 2, "a": 1}])}
    return st.fixed_dictionaries({}, optional=said).map(lambda more: sent | more)


requests = st.lists(st.lists(events, min_size=1, max_size=4), min_size=1, max_size=8)


class Recorded:
    """What the tables of the ledger hold, and how a writer finds out what says the same."""

    def __init__(self) -> None:
        self._originals: dict[bytes, tuple[int, Event]] = {}
        self._targets: dict[bytes, Correctable] = {}
        #: every row but its commit and digest, and what was corrected by what
        self.rows: list[tuple[tuple[int, ...], list[Any]]] = []
        self.corrected: list[tuple[int, int]] = []

    def write(self, commit: Commit) -> None:
        for row in commit.event_rows:
            (sequence, _, source_timestamp, received_at, occurred_at), tail = row_numbers(row), row_tail(row)
            self.rows.append(((sequence, source_timestamp, received_at, occurred_at), tail))
            texts: list[Any] = [None if field is None else field.decode() for field in (*tail[:6], tail[12])]
            tenant, stream, customer, resource, row_key, op, key = texts
            quantity = None if tail[QUANTITY] is None else numeric_text(tail[QUANTITY])
            if key is not None:
                self._targets[identity_digest(tenant, key)] = Correctable(
                    sequence,
                    stream,
                    customer,
                    resource,
                    row_key,
                    op=op,
                    occurred_at=occurred_at,
                    quantity=quantity,
                    data=tail[7],
                )
        for target, by in (struct.unpack("!2x4xq4xq", row) for row in commit.correction_rows):
            self.corrected.append((target, by))
            found = {known.sequence: digest for digest, known in self._targets.items()}[target]
            self._targets[found] = self._targets[found]._replace(corrected_by=by)

    def targets(self, group: Sequence[Collection]) -> dict[bytes, Correctable]:
        named = {event.target_digest for collection in group for event in collection.corrections}
        return {digest: target for digest, target in self._targets.items() if digest in named}

    def add(self, verdicts: Sequence[Verdict], collection: Collection) -> None:
        for verdict, event in zip(verdicts, collection.events, strict=True):
            if isinstance(verdict, Accepted) and isinstance(event, Event) and event.keys:
                self._originals[event.digests[0]] = (verdict.ingress_sequence, event)

    def known(self, group: Sequence[Collection]) -> dict[bytes, Known]:
        sent = [event for collection in group for event in collection.events if isinstance(event, Event)]
        return {
            digest: Known(
                sequence,
                original.content_hash,
                original.key_source,
                frozenset(e.content_hash for e in sent if digest in e.digests and same_content(original, e)),
            )
            for digest, (sequence, original) in self._originals.items()
        }


def record_in_groups(sent: list[list[dict[str, Any]]], cuts: set[int]) -> tuple[list[list[Verdict]], Head, Recorded]:
    """The verdicts of requests committed in groups that end where `cuts` say, and what is then recorded."""
    head, recorded, answers = EMPTY, Recorded(), list[list[Verdict]]()
    group: list[Collection] = []
    for index, request in enumerate(sent):
        group.append(Collection(judged(request, SALTS, KEYED)))
        if index + 1 in cuts or index + 1 == len(sent):
            commit = decide(group, head, 1000, recorded.known(group), HOUR, targets=recorded.targets(group))
            for verdicts, collection in zip(commit.verdicts, group, strict=True):
                recorded.add(verdicts, collection)
            recorded.write(commit)
            answers += commit.verdicts
            head, group = commit.head, []
    return answers, head, recorded


@given(requests, st.sets(st.integers(1, 8)), st.sets(st.integers(1, 8)))
def test_verdicts_numbers_times_and_rows_do_not_depend_on_how_requests_were_grouped(
    sent: list[list[dict[str, Any]]], one: set[int], other: set[int]
) -> None:
    first, first_head, first_recorded = record_in_groups(sent, one)
    second, second_head, second_recorded = record_in_groups(sent, other)
    assert first == second
    assert first_head.ingress_sequence == second_head.ingress_sequence
    assert first_head.source_timestamp == second_head.source_timestamp
    assert first_recorded.rows == second_recorded.rows
    assert first_recorded.corrected == second_recorded.corrected


@given(requests, st.sets(st.integers(1, 8)))
def test_an_event_is_corrected_at_most_once_and_never_before_it_is_there(
    sent: list[list[dict[str, Any]]], cuts: set[int]
) -> None:
    _, _, recorded = record_in_groups(sent, cuts)
    targets = [target for target, _ in recorded.corrected]
    assert len(targets) == len(set(targets))
    assert all(target < by for target, by in recorded.corrected)
    ops = {numbers[0]: tail[5] for numbers, tail in recorded.rows}
    assert all(ops[target] != b"void" for target in targets)
    assert all(ops[by] in (b"void", b"amend") for _, by in recorded.corrected)


@given(requests)
def test_accepted_events_are_numbered_densely_in_the_order_they_came(sent: list[list[dict[str, Any]]]) -> None:
    answers, head, _ = record_in_groups(sent, set())
    accepted = [verdict for verdicts in answers for verdict in verdicts if isinstance(verdict, Accepted)]
    assert [verdict.ingress_sequence for verdict in accepted] == list(range(1, len(accepted) + 1))
    assert head.ingress_sequence == len(accepted)


@given(requests)
def test_each_request_that_records_has_a_time_of_its_own(sent: list[list[dict[str, Any]]]) -> None:
    answers, _, _ = record_in_groups(sent, set())
    times = [{v.source_timestamp for v in verdicts if isinstance(v, Accepted)} for verdicts in answers]
    recorded = [time for found in times for time in found]
    assert all(len(found) <= 1 for found in times)
    assert recorded == sorted(recorded, key=int)
    assert len(set(recorded)) == len(recorded)


def test_an_event_recorded_under_an_older_salt_is_a_duplicate_with_its_original_key() -> None:
    old = judged([{"ts": 0}], Salts(("old",), 1))[0]
    assert isinstance(old, Event)
    known = {old.digests[0]: Known(7, old.content_hash, "derived")}
    commit = decide([Collection(judged([{"ts": 0}], SALTS))], EMPTY, 1000, known, HOUR)
    assert [type(v).__name__ for v in commit.verdicts[0]] == ["Duplicate"]
    assert commit.verdicts[0][0].idempotency_key == old.keys[0]  # type: ignore[union-attr]
    assert commit.head is EMPTY


def test_the_chain_notices_a_row_that_is_changed_left_out_or_moved() -> None:
    tails = [event_tail(event) for event in judged([{"ts": n} for n in range(3)], SALTS) if isinstance(event, Event)]

    def digest(number: int, occurred_at: int) -> bytes:
        tail = tails[number]
        return event_row(number + 1, 1, 5, 5, occurred_at, tail=tail, tail_digest=tail_digest(tail))[1]

    rows = [digest(number, number) for number in range(3)]
    good = chain_digest(bytes(32), 1, rows)
    assert chain_digest(bytes(32), 1, rows[:2]) != good
    assert chain_digest(bytes(32), 1, [rows[1], rows[0], rows[2]]) != good
    assert chain_digest(bytes(32), 2, rows) != good
    assert chain_digest(good, 1, rows) != good
    assert chain_digest(bytes(32), 1, [digest(0, 9), *rows[1:]]) != good
