"""Types of settings with their bounds. Times are in seconds, in milliseconds where the name ends in `Ms`.

A setting states type, bound, default and description in one place: an annotated attribute with a docstring.
No pydantic here, so that processes without settings of their own may import what holds such attributes.
"""

from typing import Annotated

from annotated_types import Interval

# seconds, above 0
UpToTenSeconds = Annotated[float, Interval(gt=0, le=10)]
UpToHalfMinute = Annotated[float, Interval(gt=0, le=30)]
UpToMinute = Annotated[float, Interval(gt=0, le=60)]
UpToTenMinutes = Annotated[float, Interval(gt=0, le=600)]
UpToHour = Annotated[float, Interval(gt=0, le=3600)]
UpToDay = Annotated[float, Interval(gt=0, le=86_400)]
SecondToTenYears = Annotated[float, Interval(ge=1, le=315_360_000)]

# seconds, 0 included
ZeroToTenSeconds = Annotated[float, Interval(ge=0, le=10)]
ZeroToMinute = Annotated[float, Interval(ge=0, le=60)]
ZeroToHour = Annotated[float, Interval(ge=0, le=3600)]

ZeroToMinuteMs = Annotated[float, Interval(ge=0, le=60_000)]

# counts
UpToTenThousand = Annotated[int, Interval(ge=1, le=10_000)]
UpToMillion = Annotated[int, Interval(ge=1, le=1_000_000)]
UpToTenMillion = Annotated[int, Interval(ge=1, le=10_000_000)]
ZeroToMillion = Annotated[int, Interval(ge=0, le=1_000_000)]

# bytes
AnyBytes = Annotated[int, Interval(ge=0)]
From64KiB = Annotated[int, Interval(ge=2**16, le=2**40)]
From1MiB = Annotated[int, Interval(ge=2**20, le=2**40)]

PerSecond = Annotated[float, Interval(ge=0, le=1e6)]
Share = Annotated[float, Interval(gt=0, le=1)]
ShareOrNone = Annotated[float, Interval(ge=0, le=1)]
Port = Annotated[int, Interval(ge=0, le=65535)]
