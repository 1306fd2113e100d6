"""A plugin, as users write them: event times in days, as numbers and as so many letters."""

from pyspark.sql import Column, functions

from tidelock.eventtimes import eventtime_types

DAY = 86_400 * 10**9


def days(text: Column) -> Column:
    return functions.try_multiply(text.try_cast("bigint"), functions.lit(DAY))


def letters(text: Column) -> Column:
    return functions.length(text).cast("bigint") * functions.lit(DAY)


eventtime_types.register("days", days)
eventtime_types.register("letters", letters)
