"""The functions of runway.yaml."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_queue import Message, Output, ProcessorContext, wrap_error

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)


def mean(process: ProcessorContext, messages: Mapping[str, Message]) -> dict[str, Any]:
    """Return the mean wind of all sensors, and the strongest wind if it is a gust."""
    with wrap_error(sensors=list(messages)):
        wind = [one.payload["wind"] for one in messages.values()]
        strongest = max(wind)
        gust = Output({"wind": strongest}, {"by": process.id}) if strongest > process.system["gust"] else None
        return {"mean": {"wind": sum(wind) / len(wind)}, "gusts": gust}


def knots(process: ProcessorContext, df: DataFrame) -> dict[str, Column]:
    """Convert meters per second to knots."""
    from pyspark.sql import functions as F

    wind = F.try_variant_get(F.try_parse_json("mean.payload"), "$.wind", "double")
    return {"knots": F.struct((wind * 1.944).alias("knots"))}


def alarm(process: ProcessorContext, messages: Mapping[str, Message]) -> None:
    """Log gusts, and sensors that fail."""
    for queue, one in messages.items():
        log.warning("%s: %s", queue, one.payload)
