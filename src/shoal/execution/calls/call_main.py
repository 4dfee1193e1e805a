"""Runs one Python call as a program: `python -m shoal.execution.calls.call_main CALL VALUE [BASE]`, for nodes without
workers.

CALL is a file made by `pack_call`, VALUE receives the pickled result. Results of other calls are read from such files.
All paths are relative to BASE, or to the current directory. It is slower than a worker by the start of an interpreter;
for the function nothing else differs.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.execution.calls.protocol import PLAIN, function_payload
from shoal.execution.calls.source_modules import load_from_source
from shoal.execution.calls.worker import encode_value


def pack_call(
    function: Callable[..., Any],
    payload: bytes,
    values: Mapping[str, str],
    paths: Sequence[str],
) -> bytes:
    """Packs a call into a file's content; `values` names the file with the value of each need that has one."""
    return pickle.dumps((function_payload(function), payload, dict(values), list(paths)), 5)


def perform(call: str, value: str, base: str = "") -> None:
    """Runs the call in the file `call` and writes its result to the file `value`."""
    load_from_source()
    value = os.path.abspath(os.path.join(base, value))  # the function may change the directory
    with open(os.path.join(base, call), "rb") as file:
        function, payload, values, paths = pickle.load(file)
    sys.path += [path for path in paths if path not in sys.path]
    request = pickle.loads(payload)
    called = pickle.loads(function)
    if request[0] == PLAIN:  # directory and variables were set by the process that started us
        result = called(*request[1], **request[2])
    else:
        from shoal.execution.calls.task_api import RunningTask

        _, _, _, name, outputs, needs, _, named, wildcards = request
        known = {need: _read(os.path.join(base, path)) for need, path in values.items()}
        task = RunningTask(name, outputs, needs, known, named, wildcards)
        result = called(task)
        result = task.value if result is None else result
    data = _encoded(result)
    os.makedirs(os.path.dirname(value), exist_ok=True)
    with open(f"{value}.new", "wb") as file:
        file.write(data)
    os.replace(f"{value}.new", value)


def _encoded(result: object) -> bytes:
    try:
        return encode_value(result)
    except Exception as error:  # pickling the user's own objects may raise anything
        from shoal.execution.calls.pickling import UnpicklableResultError

        kind = f"{type(result).__module__}.{type(result).__qualname__}"
        reason = f"{type(error).__name__}: {error}"
        raise UnpicklableResultError(f"the call returned a {kind}, which cannot be sent back ({reason})") from None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def main(words: Sequence[str]) -> int:
    try:
        perform(*words)
    except BaseException as error:  # top level of the process: any failure of the call becomes its outcome
        from shoal.execution.calls.pickling import UnpicklableResultError, traceback_text

        if isinstance(error, UnpicklableResultError):
            error.__traceback__ = None  # drops frames of Shoal, as workers do
        sys.stderr.write(traceback_text(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
