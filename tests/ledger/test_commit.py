"""A commit, decided: nothing about it depends on how requests were grouped."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.recording import HOUR, judged
from tidelock.ingest.identity import Salts, same_content
from tidelock.ledger.commit import Collection, Known, chain_digest, decide
from tidelock.ledger.rows import event_row, event_tail
from tidelock.model import Accepted, Event, Head, Verdict

SALTS = Salts(("new", "old"), 1)
EMPTY = Head(0, 0, 0, bytes(32), 1)
# Few keys, times and values, so that duplicates, conflicts and ties are common.
events = st.fixed_dictionaries(
    {},
    optional={
        "idempotencyKey": st.sampled_from(["a", "b", ""]),
        "ts": st.sampled_from([0, 1, 10**10]),
        "quantity": st.sampled_from(["1", "1.0", "2", "x"]),
        "data": st.sampled_from([{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}, 5]),
        "tenantId": st.sampled_from(["t", "u"]),
    },
)
requests = st.lists(st.lists(events, min_size=1, max_size=4), min_size=1, max_size=8)


class Recorded:
    """What the identities table holds, and how a writer finds out what says the same."""

    def __init__(self) -> None:
        self._originals: dict[bytes, tuple[int, Event]] = {}

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


def record_in_groups(sent: list[list[dict[str, Any]]], cuts: set[int]) -> tuple[list[list[Verdict]], Head]:
    """The verdicts of requests committed in groups that end where `cuts` say."""
    head, recorded, answers = EMPTY, Recorded(), list[list[Verdict]]()
    group: list[Collection] = []
    for index, request in enumerate(sent):
        group.append(Collection(judged(request, SALTS)))
        if index + 1 in cuts or index + 1 == len(sent):
            commit = decide(group, head, 1000, recorded.known(group), HOUR)
            for verdicts, collection in zip(commit.verdicts, group, strict=True):
                recorded.add(verdicts, collection)
            answers += commit.verdicts
            head, group = commit.head, []
    return answers, head


@given(requests, st.sets(st.integers(1, 8)), st.sets(st.integers(1, 8)))
def test_verdicts_numbers_and_times_do_not_depend_on_how_requests_were_grouped(
    sent: list[list[dict[str, Any]]], one: set[int], other: set[int]
) -> None:
    first, first_head = record_in_groups(sent, one)
    second, second_head = record_in_groups(sent, other)
    assert first == second
    assert first_head.ingress_sequence == second_head.ingress_sequence
    assert first_head.source_timestamp == second_head.source_timestamp


@given(requests)
def test_accepted_events_are_numbered_densely_in_the_order_they_came(sent: list[list[dict[str, Any]]]) -> None:
    answers, head = record_in_groups(sent, set())
    accepted = [verdict for verdicts in answers for verdict in verdicts if isinstance(verdict, Accepted)]
    assert [verdict.ingress_sequence for verdict in accepted] == list(range(1, len(accepted) + 1))
    assert head.ingress_sequence == len(accepted)


@given(requests)
def test_each_request_that_records_has_a_time_of_its_own(sent: list[list[dict[str, Any]]]) -> None:
    answers, _ = record_in_groups(sent, set())
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
    rows = [event_row(n + 1, 1, 5, 5, n, tail=tail) for n, tail in enumerate(tails)]
    good = chain_digest(bytes(32), 1, rows)
    assert chain_digest(bytes(32), 1, rows[:2]) != good
    assert chain_digest(bytes(32), 1, [rows[1], rows[0], rows[2]]) != good
    assert chain_digest(bytes(32), 2, rows) != good
    assert chain_digest(good, 1, rows) != good
    assert chain_digest(bytes(32), 1, [event_row(1, 1, 5, 5, 9, tail=tails[0]), *rows[1:]]) != good
