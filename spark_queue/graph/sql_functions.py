"""The SQL that graph files and callers over HTTP may use: expressions with listed functions.

Spark has functions that call any Java method or read files, and a subquery reads any table. So the
functions are listed, and all others are refused, also those that a program has registered. A graph
in Python is a program: its expressions are not checked.

The check of this module is quick and needs no Spark. Its errors are for the readers of files. It
decides nothing, since Spark may read a text in another way: `runner/sql/` checks what Spark reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import TokenError, tokenize
from sqlglot.tokenizer_core import Token, TokenType

from spark_queue.errors import did_you_mean
from spark_queue.graph.sql_limits import length_mistake, nesting_mistake


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


#: Functions of Spark 4 whose value depends on the message, the time or chance alone.
FUNCTIONS = words("""
    array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_union
    arrays_overlap arrays_zip flatten get sequence shuffle slice sort_array

    bit_count bit_get getbit shiftleft shiftright shiftrightunsigned

    cardinality concat element_at reverse size try_element_at

    between coalesce if iff ifnull nanvl nullif nullifzero nvl nvl2 when zeroifnull

    bigint binary boolean cast date decimal double float int smallint string time timestamp tinyint try_cast

    from_csv schema_of_csv to_csv

    add_months convert_timezone curdate current_date current_time current_timestamp current_timezone date_add
    date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname
    dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day localtimestamp make_date
    make_dt_interval make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month
    monthname months_between next_day now quarter second timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp trunc try_make_interval try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros
    unix_millis unix_seconds unix_timestamp weekday weekofyear year

    crc32 hash md5 sha sha1 sha2 xxhash64

    from_json get_json_object json_array_length json_object_keys schema_of_json to_json

    aggregate array_sort exists filter forall map_filter map_zip_with reduce transform transform_keys transform_values
    zip_with

    map map_concat map_contains_key map_entries map_from_arrays map_from_entries map_keys map_values str_to_map

    abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp
    expm1 factorial floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power
    radians rand randn random rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod
    try_multiply try_subtract unhex uniform width_bucket

    assert_true raise_error typeof uuid

    equal_null ilike isnan isnotnull isnull like regexp regexp_like rlike

    ascii base64 bit_length btrim char char_length character_length chr collate collation concat_ws contains decode
    elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length
    levenshtein locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf
    randstr regexp_count regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace
    right rpad rtrim sentences soundex space split split_part startswith substr substring substring_index to_binary
    to_char to_number to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper
    validate_utf8

    named_struct struct

    parse_url try_parse_url try_url_decode url_decode url_encode

    is_valid_variant is_variant_null parse_json schema_of_variant to_variant_object try_parse_json try_variant_get
    variant_get
""")

#: Words that may stand before a parenthesis, and are no functions.
_KEYWORDS = words("""
    all and any as case character dec distinct else end escape from in interval is not numeric on or some then to
    varchar when
""")

#: Words that begin a query.
_QUERY_WORDS = frozenset(("select", "table", "values", "with"))

_WORD = re.compile(r"\w+")
_JAVASCRIPT = re.compile(r"\s*+(async\b|function\b|\(?[\w\s,]*+\)?\s*+=>)")  # linear: it gives nothing back
_RAW_STRING = re.compile(r"""\b[rR]['"]""")


def sql_mistake(text: str) -> str:
    """Return why an expression is refused; an empty text if it is not.

    Whether it is valid SQL is found out by Spark, when a graph starts.
    """
    if mistake := length_mistake(text):
        return mistake
    if _JAVASCRIPT.match(text):
        return (
            "Spark SQL, not JavaScript: write headers['class'] = 'late' for env => env.msg.hdrs.class == 'late', and "
            "payload:dep_delay::int > 60 for env => env.msg.payload.dep_delay > 60"
        )
    try:
        tokens = tokenize(text, read="databricks")
    except TokenError as error:
        return f"Spark SQL: {str(error).splitlines()[0]}"
    if any(one.comments for one in tokens) or not tokens:
        return "an expression without comments"
    if mistake := nesting_mistake(tokens):
        return mistake
    for one in tokens:  # they may end elsewhere for Spark
        if one.token_type == TokenType.RAW_STRING or _RAW_STRING.match(text, one.start):
            return "without raw strings: write '\\\\d' for r'\\d'"
    if any(_begins_query(tokens, index) for index in range(len(tokens))):
        return "an expression over one message, without a query"
    for name in _called_names(tokens):
        if name.lower() not in FUNCTIONS:
            hint = did_you_mean(name.lower(), FUNCTIONS) or "; docs/exchanges.md lists them"
            return f"made of listed functions, and {name}() is not one of them{hint}"
    return ""


def _is_word(token: Token) -> bool:
    return token.token_type not in (TokenType.STRING, TokenType.NUMBER)


def _begins_query(tokens: list[Token], index: int) -> bool:
    """Return whether a word begins a query. A field of the payload may have its name."""
    word, before = tokens[index].text.lower(), tokens[index - 1].token_type if index else None
    if not _is_word(tokens[index]) or before in (TokenType.COLON, TokenType.DOT):
        return False
    return word in _QUERY_WORDS or (word == "from" and before in (None, TokenType.L_PAREN))


def _called_names(tokens: list[Token]) -> Iterator[str]:
    """Yield the name before each parenthesis, with its qualifiers."""
    for index, one in enumerate(tokens[1:], 1):
        name = tokens[index - 1]
        if one.token_type != TokenType.L_PAREN or not _is_word(name) or not _WORD.search(name.text):
            continue
        qualified = index >= 2 and tokens[index - 2].token_type == TokenType.DOT
        if qualified or name.token_type == TokenType.IDENTIFIER or name.text.lower() not in _KEYWORDS:
            yield f"{tokens[index - 3].text}.{name.text}" if qualified and index >= 3 else name.text
