"""Text forms of durations, sizes, percentages, rates and counts for people.

All user interfaces use these functions; `ui/web/assets/quantities.js` follows the same rules in the browser, and a
test compares both. Files and JSON contain plain numbers instead.

- A value has at most three significant digits and one unit. Durations of a minute or more have two units.
- Only zero is written as 0. A value that is too small to show is written as a bound, such as `< 0.1 %`.
- A value that rounds up to the next unit is written in that unit: `1.0 s` instead of `1000 ms`.
- Halves are rounded up. Python and JavaScript format them differently, so neither of them does the rounding here.
"""

from __future__ import annotations

from math import floor

MINUS = "\N{MINUS SIGN}"
TO = "\N{EN DASH}"
_POWERS = "KMGTPE"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 31557600


def count(number: int, noun: str) -> str:
    """`1 task`, `12,345 tasks`, `2 categories`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"


def show_number(value: float) -> str:
    """`0.00556`, `2.5`, `12`, `1,234`; `< 0.00001` for smaller values."""
    if value < 0:
        return MINUS + show_number(-value)
    return "< 0.00001" if 0 < value < 1e-5 else _three_digits(value)


def show_cores(cores: float) -> str:
    """`1 core`, `2.5 cores`."""
    return f"{show_number(cores)} core{'s' * (cores != 1)}"


def show_seconds(seconds: float) -> str:
    """A duration: `15 µs`, `2.4 ms`, `24.3 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`, `120 d`, `2.74 years`.

    Values below a minute have a decimal where it matters, unless the value is exactly whole: a limit is `30 s`.
    """
    if seconds < 0:
        return MINUS + show_seconds(-seconds)
    if seconds < 1e-6:
        return "< 1 µs" if seconds else "0 s"
    for unit, amount in (("µs", seconds * 1e6), ("ms", seconds * 1e3)):
        if _nearest(amount) < 1000:
            return f"{_two_digits(amount)} {unit}"
    if _nearest(seconds * 10) < 600:
        return f"{_tenths(seconds)} s"
    if (whole := _nearest(seconds)) < _HOUR:
        return f"{whole // 60} min {whole % 60:02} s"
    if (minutes := _nearest(seconds / _MINUTE)) < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    if (hours := _nearest(seconds / _HOUR)) < 100 * 24:
        return f"{hours // 24} d {hours % 24} h"
    if (days := _nearest(seconds / _DAY)) < 1000:
        return f"{days} d"
    return f"{_three_digits(seconds / _YEAR)} years"


def show_bytes(amount: float) -> str:
    """A size in powers of 1024: `512 B`, `1.5 KiB`, `0.977 MiB`, `2 GiB`."""
    if amount < 0:
        return MINUS + show_bytes(-amount)
    if 0 < amount < 1:
        return "< 1 B"
    if _nearest(amount) < 1000:
        return f"{_nearest(amount)} B"
    power = 0
    while power == 0 or (_nearest(amount) >= 1000 and power < len(_POWERS)):
        amount /= 1024
        power += 1
    return f"{_three_digits(amount)} {_POWERS[power - 1]}iB"


def show_share(part: float, whole: float = 1.0) -> str:
    """A percentage: `< 0.1 %`, `0.4 %`, `12 %`. The share of an empty whole is `0 %`.

    Anything below the whole is at most `99 %`, so that `100 %` means complete.
    """
    share = part / whole if whole else 0.0
    if share < 0:
        return MINUS + show_share(-share)
    if (tenths := _nearest(share * 1000)) < 100:
        return f"{tenths / 10:.1f} %" if tenths else "< 0.1 %" if share else "0 %"
    percent = _nearest(share * 100)
    return f"{99 if percent == 100 and share < 1 else percent:,} %"


def show_progress(done: float, total: float) -> str:
    """The percentage of finished tasks; `100 %` if there are none."""
    return show_share(done, total) if total else "100 %"


def show_change(ratio: float) -> str:
    """Relative change of a ratio against 1: `+12 %`."""
    return ("+" if ratio >= 1 else "") + show_share(ratio - 1)


def show_rate(per_second: float) -> str:
    """`812/s`, `2.5/s`, `14/min`, `3/h`."""
    if per_second <= 0:
        return "0/s"
    for unit, size in (("s", 1), ("min", _MINUTE), ("h", _HOUR), ("d", _DAY)):
        if per_second * size >= 0.95:
            return f"{_two_digits(per_second * size)}/{unit}"
    return "< 1/d"


def time_left(left: float, least: float | None = None, most: float | None = None) -> str:
    """`12 min (10-15) left`, with an en dash. Estimates have no fractions of a second."""
    if max(left, most or 0.0) < 2:
        return "nearly done"
    return f"{span(left, least, most)} left"


def span(likely: float, least: float | None, most: float | None) -> str:
    """A duration with its error band: `12 min (10-15)`, with an en dash."""
    text = show_estimate(likely)
    if least is None or most is None:
        return text
    low, high = show_estimate(least), show_estimate(most)
    if low == high:
        return text
    unit = text.rpartition(" ")[2]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} ({low}{TO}{high})"


def show_estimate(seconds: float) -> str:
    """An estimate: one number and one unit, with about two digits."""
    if seconds <= 0:
        return "0 s"
    for unit, size in (("s", 1), ("min", _MINUTE)):
        if _nearest(seconds / size) < 90:
            return f"{max(1, _nearest(seconds / size))} {unit}"
    if _nearest(seconds / _HOUR) < 48:
        return f"{_two_digits(seconds / _HOUR)} h"
    return f"{_two_digits(seconds / _DAY)} d"


def _nearest(value: float) -> int:
    return floor(value + 0.5)


def _tenths(value: float) -> str:
    """With one decimal, unless the value is whole up to floating-point error."""
    whole = _nearest(value)
    return str(whole) if abs(value - whole) <= 1e-9 * whole else f"{_nearest(value * 10) / 10:.1f}"


def _two_digits(value: float) -> str:
    """With one decimal below ten, without decimals from ten on."""
    return _tenths(value) if _nearest(value * 10) < 100 else f"{_nearest(value):,}"


def _three_digits(value: float) -> str:
    """At most three significant digits and five decimals, without trailing zeros."""
    for decimals in (5, 4, 3, 2, 1):
        if (scaled := _nearest(value * 10**decimals)) < 1000:
            return f"{scaled / 10**decimals:.{decimals}f}".rstrip("0").rstrip(".")
    return f"{_nearest(value):,}"
