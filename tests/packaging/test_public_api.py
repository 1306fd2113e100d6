"""The public API is what docs/public-api.md lists: no less, and nothing beside it by accident."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from graphql import GraphQLEnumType, print_schema

from tidelock.graphql.schema import make_schema
from tidelock.tables import ALWAYS

pytestmark = pytest.mark.check

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "public-api.md").read_text()
MODULES = ("tidelock.client", "tidelock.spark", "tidelock.eventtimes")


def listed(heading: str) -> list[str]:
    """The lines of the fence below a heading."""
    found = re.search(rf"^## {heading}\n.*?^```text\n(.*?)^```", PAGE, re.M | re.S)
    assert found is not None, f"the page has no list below {heading}"
    return found[1].splitlines()


def signature(name: str, call: Callable[..., object]) -> str:
    """Parameters as a caller sees them; `=` behind those that may be left out."""
    shown: list[str] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        shown.append(parameter.name + ("" if parameter.default is parameter.empty else "="))
    return f"{name}({', '.join(each for each in shown if each != 'self')})"


def public_names(module: str) -> Iterator[str]:
    own = importlib.import_module(module)
    for name in sorted(own.__all__):
        value = getattr(own, name)
        place = f"{module}.{name}"
        if inspect.isfunction(value) or hasattr(value, "__wrapped__"):
            yield signature(place, value)
        elif not inspect.isclass(value):
            yield place
        else:
            if dataclasses.is_dataclass(value):
                yield f"{place}: {', '.join(field.name for field in dataclasses.fields(value))}"
            elif issubclass(value, Exception):
                yield place
            else:
                yield signature(place, value)
            methods = {key: each for key, each in vars(value).items() if not key.startswith("_")}
            yield from (
                f"{place}.{key}" if isinstance(each, property) else signature(f"{place}.{key}", each)
                for key, each in methods.items()
                if isinstance(each, property) or inspect.isfunction(each)
            )


def headings(page: str) -> list[str]:
    """What a page of reference has below its groups."""
    return re.findall(r"^### `(.*)`$", (DOCS / page).read_text(), re.M)


def test_python_names_and_their_parameters_are_those_on_the_page() -> None:
    assert [line for module in MODULES for line in public_names(module)] == listed("Python")


def test_commands_are_those_on_the_page() -> None:
    words = [re.sub(r" [\[A-Z].*", "", each) for each in headings("commands.md")]
    assert [each for each in words if not each.startswith("tidelock bench ")] == listed("Commands")


def test_routes_are_those_on_the_page() -> None:
    assert [*headings("api.md"), "WEBSOCKET /ws", "WEBSOCKET /graphql"] == listed("HTTP")


def test_graphql_names_are_made_of_a_tables_name_as_the_page_says() -> None:
    schema = make_schema([ALWAYS["counters"]])
    text = print_schema(schema)
    roots = {"query": schema.query_type, "subscription": schema.subscription_type}
    fields = [f"{kind} {name}" for kind, type_ in roots.items() if type_ is not None for name in type_.fields]
    types = [name for name in schema.type_map if name.startswith("counters_") and f" {name} " in text]
    changed = schema.type_map["RowOperation"]
    assert isinstance(changed, GraphQLEnumType)
    found = [*fields, *(f"type {name}" for name in types), f"RowOperation {' '.join(changed.values)}"]
    assert [line.replace("counters", "TABLE") for line in found] == listed("GraphQL")
