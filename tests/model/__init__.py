"""The reference model: what the tables and their changes are, for any ledger. The oracle of every test of the fold.

Small, sequential, exact, and independent: it imports nothing of the product. Where the contract is silent, the choice
made is a comment that begins with `Choice:`, and the product follows it.

    state = fold(events, definitions)           definitions in the shape of tidelock.toml
    state.table("counters")                     (tenant, key) -> row
    state.changes                               old and new row of every key that a collection changed
    state.metrics, state.raises                 (window, tenant) -> how far its time has come, and how it came there
    state.held, state.open_windows              (window, tenant) -> what waits, and what is not closed yet
"""

from tests.model.events import Event
from tests.model.fold import apply, fold
from tests.model.tables import Change, State

__all__ = ["Change", "Event", "State", "apply", "fold"]
