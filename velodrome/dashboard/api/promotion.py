"""As what a candidate is promoted."""

from __future__ import annotations

from pydantic import Field

from velodrome.dashboard.answers import Asked


class Promotion(Asked):
    """As what a candidate is promoted."""

    name: str | None = Field(None, max_length=1000, description="of the champion; the candidate's own if not given")
    margin: float = Field(
        0.0, ge=-100.0, le=1000.0, allow_inf_nan=False, description="by how much its lead must exceed 0, in per cent"
    )
