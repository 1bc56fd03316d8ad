"""Runs from before places of the gold document were counted from 1: their studies and rows in today's numbers."""

import re
from typing import Any

from floatscope.qa.stressors.ranges import parse_integers

FIRST_PLACE = "first_place"
"""The key of a manifest that says so: 1."""


def counted_from_one(curve: dict[str, Any]) -> dict[str, Any]:
    """A `[[conditions]]` table, as a study file has it, whose places are counted from 0."""
    if curve.get("stressor") == "position" and (values := str(curve["values"])) != "all":
        return curve | {"values": ",".join(str(place + 1) for place in parse_integers(values, (), 0))}
    return curve | {"places": [place + 1 for place in curve["places"]]} if "places" in curve else curve


def named_from_one(row: dict[str, Any]) -> dict[str, Any]:
    """A row of results under the name that its condition has today."""
    shifted = re.sub(
        r"^(position/\d+/|edit/.*, gold at )(\d+)", lambda at: f"{at[1]}{int(at[2]) + 1}", row["condition"]
    )
    return row | {"condition": shifted}
