"""Spark is started as Tidelock needs it."""

from tidelock.fold.session import Spark


def test_the_session_computes_in_utc_and_raises_on_wrong_data(spark: Spark) -> None:
    row = spark.session.sql("SELECT current_timezone() AS zone, 1 AS one").toArrow().to_pylist()
    assert row == [{"zone": "UTC", "one": 1}]
    assert spark.session.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.jdbc
    assert spark.alive()
