"""Which tests one worker of pytest-xdist runs: those of a server that one test has at a time; all others go anywhere.

pytest-xdist's own groups, by a marker, do nothing with pytest 9.2, whose tests no longer take another name.
"""

from __future__ import annotations

from tests.support.elasticsearch import VERSIONS
from xdist.scheduler.loadscope import LoadScopeScheduling

CLUSTERS = ("cluster_deaths", "clusters", "commit_matrix", "standalone")
"""Files of tests of Spark that share a cluster or an application."""
GROUPS = {
    **{f"elasticsearch {version}": version for version in VERSIONS},
    "OpenSearch": "opensearch",
    "redis cluster": "redis_cluster.py",
    **{f"Spark, {name}": f"spark/test_{name}.py" for name in CLUSTERS},
}
"""Each group, and the part of a test's id by which its tests are known."""


class GroupScheduling(LoadScopeScheduling):
    """Hands out tests one by one, and each group as a whole; groups come first, since they take longest."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group, part in GROUPS.items() if part in nodeid), nodeid)
