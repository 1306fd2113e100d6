"""What Spark is started with follows the settings, and what cannot work is refused before it starts."""

from pathlib import Path

import pytest

from tidelock.errors import SettingsError
from tidelock.settings import load
from tidelock.settings.groups import SparkSettings
from tidelock.spark.configuration import check, cores, grows_with_cluster, is_local, spark_conf, spark_environment

pytestmark = pytest.mark.check


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("local-cluster[2, 3, 1024]", 6), ("spark://h:7077", None)],
)
def test_cores_are_known_where_spark_is_local(master: str, expected: int | None) -> None:
    assert cores(master) == expected
    assert is_local(master) == (expected is not None)


def test_a_cluster_needs_a_database_that_it_reaches() -> None:
    cluster = SparkSettings(master="spark://h:7077")
    with pytest.raises(SettingsError, match=r"spark\.master.*spark://h:7077.*DATABASE_URL"):
        check(cluster, None)
    check(cluster, "postgresql://db/x")
    check(SparkSettings(), None)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (SparkSettings(master="sc://h:15002"), "runs Spark's driver itself"),
        (SparkSettings(conf={"spark.driver.memory": "1g"}), r"must be set as `spark\.driver_memory`"),
        (SparkSettings(conf={"spark.sql.ansi.enabled": "false"}), "cannot be changed"),
    ],
)
def test_what_cannot_work_is_refused(settings: SparkSettings, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        check(settings, "postgresql://db/x")


def test_properties_are_passed_on_and_added_to_ours_where_both_are_needed(tmp_path: Path) -> None:
    given = {"spark.jars": "mine.jar", "spark.driver.extraJavaOptions": "-Da=b", "spark.sql.shuffle.partitions": "7"}
    made = spark_conf(
        SparkSettings(master="local[2]", driver_memory=3 << 30, conf=given), tmp_path, [Path("/x/y z.jar")]
    )
    assert made["spark.jars"] == "file:///x/y%20z.jar,mine.jar"
    assert made["spark.driver.extraJavaOptions"].endswith(" -Da=b")
    assert "UseParallelGC" in made["spark.driver.extraJavaOptions"]
    assert made["spark.sql.shuffle.partitions"] == "7"
    assert made["spark.driver.memory"] == "3072m"
    assert made["spark.driver.bindAddress"] == "127.0.0.1"


def test_only_a_local_spark_is_bound_to_this_machine(tmp_path: Path) -> None:
    cluster = SparkSettings(master="spark://h:7077")
    assert "spark.driver.host" not in spark_conf(cluster, tmp_path, [])
    assert "SPARK_LOCAL_IP" not in spark_environment(cluster, tmp_path, tmp_path)
    assert spark_environment(SparkSettings(), tmp_path, tmp_path)["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize(
    "text",
    [
        "[spark.conf]\nspark.ui.enabled = true\nspark.x = 1.5",
        '[spark]\nconf = {"spark.ui.enabled" = true, "spark.x" = 1.5}',
    ],
)
def test_property_names_may_be_written_with_or_without_quotes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tidelock.toml"
    file.write_text(text)
    assert load(file, {}, {}).spark.conf == {"spark.ui.enabled": "true", "spark.x": "1.5"}


def test_a_property_that_spark_would_ignore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'names begin with "spark\."'):
        load(None, {"TIDELOCK_SPARK_CONF": '{"executor.memory": "1g"}'}, {})


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local[2]", {}, False),
        ("spark://h:7077", {}, True),
        ("spark://h:7077", {"spark.sql.shuffle.partitions": "40"}, False),
        ("k8s://h", {"spark.dynamicAllocation.enabled": "true"}, False),
    ],
)
def test_a_range_has_as_many_parts_as_a_cluster_has_cores_by_default(
    master: str, conf: dict[str, str], expected: bool
) -> None:
    assert grows_with_cluster(SparkSettings(master=master, conf=conf)) is expected
