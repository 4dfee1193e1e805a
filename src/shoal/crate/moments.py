"""Moments as crates write them: ISO 8601 with milliseconds, in UTC."""

from __future__ import annotations

_DAY = 86_400_000
"""In milliseconds."""
_ERA_DAYS, _ERA_YEARS = 146_097, 400
"""The calendar repeats itself after so many days, which are so many years."""
_MARCH_FIRST = 719_468
"""Days from the first of March of the year 0 to the first of January 1970."""


def moment(seconds: float) -> str:
    """Seconds since 1970 as `2024-05-01T12:00:00.250+00:00`."""
    days, rest = divmod(round(seconds * 1000), _DAY)
    year, month, day = date_of(days)
    whole, thousandths = divmod(rest, 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}+00:00"


def date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day, so many days after the first of January 1970.

    Years are counted from March, so that the day that leap years have more is the last one of a year.
    """
    era, day = divmod(days + _MARCH_FIRST, _ERA_DAYS)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # from March: 31, 30, 31, 30, 31, and so on
    day -= (153 * month + 2) // 5
    return era * _ERA_YEARS + year + (month >= 10), month + 3 - 12 * (month >= 10), day + 1
