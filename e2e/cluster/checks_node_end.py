"""The end of the node daemon's release: helm's own test, then helm uninstall. Registered behind all checks that need it."""
from checks_restarts import used_bytes
from harness import check
from node_release import DRIVER


@check("cluster", "store", "helm", "node")
def chart_with_a_node_is_tested_and_removed(h, cluster, store, helm, node):
    """helm test mounts a model and reads all of it; uninstall leaves the CSIDriver, and the models in memory."""
    done = helm(node.own, "test", "models", "--timeout", "120s", "--filter", "name=models-sluice-test-volume")
    assert "Succeeded" in done.stdout, done.stdout[-600:]
    helm(node.own, "uninstall", "models", "--wait")
    assert DRIVER in cluster.kubectl("get", "csidrivers", "-o", "name"), "the CSIDriver went with the release"
    assert used_bytes(node.memory) >= node.model_bytes, "the models went with the release"
    cluster.kubectl("delete", "csidriver", DRIVER)
    node.delete_namespaces()
