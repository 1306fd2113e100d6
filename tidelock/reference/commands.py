"""The page of commands: what each is for, examples, arguments and options, as their help has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_ABOUT = """# Commands

<!-- Made by `make docs` from the commands' own help. Change it there. -->

`tidelock COMMAND --help` shows the same. These options are common to many commands and are listed only here:

| | |
|---|---|
| `--config FILE` | the settings file; default: `./tidelock.toml`, if it exists |
| `--data DIR` | directory for everything kept on disk, including the embedded Postgres; default: `.tidelock` |
| `--database-url URL` | the Postgres that holds the ledger, instead of the embedded one; also `DATABASE_URL` |
| `--log-level LEVEL` | of commands that keep running: `debug`, `info`, `warning` or `error` |
| `--json` | print JSON for programs, lists as one object per line; commands that keep running report start and stop |

Commands use the embedded Postgres that runs in the data directory, or start it while they run. Results go to stdout,
progress and messages to stderr.

| exit code | |
|---|---|
| 0 | done |
| 1 | a check found a difference |
| 2 | wrong use or settings |
| 3 | something needed cannot be reached |

`tidelock --install-completion` installs shell completion for commands and options; `--show-completion` prints what it
would install.
"""

#: listed once, above
_COMMON = {"--config", "--data", "--database-url", "--log-level", "--json", "--help"}
#: how examples are marked in a help text
_EXAMPLE = re.compile(r"^\[dim\](.*)\[/\]$")


def leaves(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its words."""
    nested = getattr(command, "commands", None)
    if nested is None:
        yield path, command
        return
    for name, below in nested.items():
        if not below.hidden:
            yield from leaves(below, *path, name)


def examples(command: Any) -> list[str]:
    """Lines that can be typed, out of its help."""
    found = (_EXAMPLE.match(line.strip()) for line in (command.help or "").splitlines())
    return [match[1].replace("\\[", "[") for match in found if match]


def commands_page(root: Any) -> str:
    """The page, by the groups that `tidelock --help` shows."""
    panels: dict[str, list[str]] = {}
    for name, command in root.commands.items():
        if not command.hidden:
            panel = panels.setdefault(command.rich_help_panel, [])
            panel.extend(_section(path, leaf) for path, leaf in leaves(command, name))
    return _ABOUT + "".join(f"\n## {panel}\n{''.join(sections)}" for panel, sections in panels.items())


def _section(path: tuple[str, ...], command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = " ".join(["tidelock", *path, *(_placeholder(argument) for argument in arguments)])
    lines = [f"\n### `{shown}`\n", _prose(command), "", "```text", *examples(command), "```", ""]
    rows = [_row(each) for each in command.params if not each.hidden and not _COMMON & set(each.opts)]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _prose(command: Any) -> str:
    lines = [line.strip() for line in (command.help or "").splitlines()]
    return "\n".join(line for line in lines if not _EXAMPLE.match(line)).strip()


def _placeholder(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = _placeholder(parameter)
    else:
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
        name += "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    about = (parameter.help or "") + _default(parameter) + (" Required." if parameter.required else "")
    return f"| `{_cell(name)}` | {_cell(about).strip()} |"


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return f" Default: {parameter.show_default}."
    default = parameter.default
    if not parameter.show_default or default in (None, False, (), "") or callable(default):
        return ""
    return f" Default: `{default}`."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
