"""How a write turns its struct payloads into JSON: by its options, as `to_json` takes them.

The driver checks the options. A task finds the zone and the conf of its session in its local
properties, in which Spark passes what was set in the session.
"""

from __future__ import annotations

from pyspark import TaskContext
from pyspark.sql.types import StructType

from spark_queue.options.declaration import option_error, option_name
from spark_queue.options.parts import Content, JsonFormats
from spark_queue.options.time_zones import zone_of
from spark_queue.spark.json_moments import MomentStyle
from spark_queue.spark.json_types import WRITTEN_AS_JSON, format_error
from spark_queue.spark.json_write import JsonStyle
from spark_queue.spark.moment_patterns import MomentPart, Unfit, compile_pattern, local_moment
from spark_queue.spark.payload_zone import payload_zone

#: The local property with the default of `ignoreNullFields`.
_IGNORE_NULLS_PROPERTY = "spark.sql.jsonGenerator.ignoreNullFields"

#: The options with patterns, and a moment of each type: without a zone, or without a time.
_PATTERNS = {
    "timestamp_format": local_moment(0, 0, 0, "UTC"),
    "timestamp_ntz_format": local_moment(0, 0),
    "date_format": local_moment(0),
}


#: Formats of a payload that is no JSON.
_NO_JSON = ("text", "binary")


def check_style(formats: JsonFormats, content: Content, schema: StructType) -> None:
    """Raise `OptionError` if a pattern is wrong, or `payloadFormat` contradicts the payload."""
    for name in _PATTERNS:
        _pattern(formats, name)
    form = content.payload_format
    for one in schema.fields:
        if one.name == "payload" and isinstance(one.dataType, WRITTEN_AS_JSON) and form in _NO_JSON:
            raise format_error(form, one.dataType, one.name, "written as")


def style_of(content: Content, formats: JsonFormats) -> JsonStyle:
    """Return how the task that runs writes JSON."""
    task = TaskContext.get()
    ignore_nulls = formats.ignore_null_fields
    if ignore_nulls is None:
        ignore_nulls = task is None or (task.getLocalProperty(_IGNORE_NULLS_PROPERTY) or "true").lower() == "true"
    moments = MomentStyle(
        zone=zone_of(payload_zone(content) or "UTC").info,
        timestamp=_pattern(formats, "timestamp_format"),
        timestamp_ntz=_pattern(formats, "timestamp_ntz_format"),
        date=_pattern(formats, "date_format"),
    )
    return JsonStyle(moments, ignore_nulls=ignore_nulls)


def _pattern(formats: JsonFormats, name: str) -> MomentPart | None:
    """Return the function for the pattern in an option, `None` if it is not set."""
    pattern = getattr(formats, name)
    if pattern is None:
        return None
    try:
        write = compile_pattern(pattern)
        write(_PATTERNS[name])
    except Unfit as error:
        raise option_error(option_name(name), f"is {pattern!r}, which does not fit: {error}") from None
    except ValueError as error:
        raise option_error(option_name(name), f"is {pattern!r}, which is no pattern for a moment: {error}") from None
    return write
