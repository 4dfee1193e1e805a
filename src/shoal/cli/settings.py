"""Options that give values to JX workflows: their order on the command line counts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


class Setting(argparse.Action):
    """Notes a setting together with its kind, behind those that stood before it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        earlier: list[tuple[str, object]] = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*earlier, (self.const, values)])


def add_settings(parser: argparse._ActionsContainer) -> None:
    """`--jx-args FILE` and `--jx-define VAR=EXPR`, together in `jx_settings`."""
    parser.add_argument(
        *("--jx-args", "--jx-context"),
        dest="jx_settings",
        action=Setting,
        const="args",
        default=[],
        metavar="FILE",
        help="define JX variables from a file that holds an object",
    )
    parser.add_argument(
        "--jx-define",
        dest="jx_settings",
        action=Setting,
        const="define",
        default=[],
        metavar="VAR=EXPR",
        help="define one JX variable; the last definition counts",
    )
