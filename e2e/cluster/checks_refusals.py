"""What cannot work says so: exit code, termination message and event, as docs/kubernetes.md has them."""
from cluster import ends, loader, pod, secret, shell
from fixtures import BUCKET
from harness import check

URI = f"s3://{BUCKET}/minilm/"


def refused(cluster, word, store_secret, init, code, *words, size="256Mi", memory="64Mi"):
    """A pod whose init container ends with this code and says these words; its back-off is an event."""
    space = cluster.namespace(word)
    cluster.apply(space, store_secret, pod("model", [init], shell("true", memory=memory), size=size, policy="Always"))
    tried = cluster.until(space, "model", "a refusal", lambda pod: ends(pod, "load"))
    end = ends(tried, "load")[0]
    assert end.code == code, f"exit code {end.code}, not {code}: {end.message}"
    for wanted in words:
        assert wanted in end.message, f"'{wanted}' is not in '{end.message}'"
    assert len(end.message.strip().splitlines()) == 1 and len(end.message) <= 4096, end.message
    # The next try may have begun, with nothing to say yet.
    cluster.until(space, "model", "the same as the log's last line",
                  lambda _: words[0] in cluster.logs(space, "model", "load", "--tail=1"))
    cluster.until(space, "model", "the event BackOff",
                  lambda _: any(event["reason"] == "BackOff" for event in cluster.events(space, "model")))
    described = cluster.kubectl("-n", space, "describe", "pod", "model")
    assert words[0] in described, "kubectl describe does not show it"
    cluster.delete(space)
    return f"{end.code}: {end.message.strip()}"


@check("cluster", "store", "models")
def wrong_credentials_are_named(h, cluster, store, models):
    """A wrong secret key ends with 3 and says whose answer that is."""
    wrong = secret("store", {"AWS_ACCESS_KEY_ID": store.access, "AWS_SECRET_ACCESS_KEY": "wrong" * 8})
    note = refused(cluster, "key", wrong, loader(URI, store), 3, "403", "SignatureDoesNotMatch")
    assert "wrongwrong" not in note, "the key is in the message"
    return note


@check("cluster", "store", "models")
def missing_bucket_is_named(h, cluster, store, models):
    """A bucket that does not exist ends with 4 and its name."""
    return refused(cluster, "bucket", store.credentials(), loader("s3://no-such-bucket/minilm/", store), 4,
                   "no-such-bucket")


@check("cluster", "store", "models")
def small_volume_is_refused_before_a_byte(h, cluster, store, models):
    """A sizeLimit below the model ends with 6, with both numbers and what to set."""
    return refused(cluster, "volume", store.credentials(), loader(URI, store), 6, "87.4 MiB", "sizeLimit", size="64Mi")


@check("cluster", "store", "models")
def small_limit_is_refused_before_a_byte(h, cluster, store, models):
    """A memory limit of the loader below the model ends with 6 instead of a kill, and says what to set."""
    return refused(cluster, "limit", store.credentials(), loader(URI, store, memory="80Mi"), 6, "of memory", "80.0 MiB",
                   "resources.limits.memory", memory="256Mi")


@check("cluster", "store", "models")
def small_pod_is_refused_before_a_byte(h, cluster, store, models):
    """Where the whole pod has less memory than the model, its volume is that small: 6, and both remedies."""
    return refused(cluster, "pod", store.credentials(), loader(URI, store, memory="64Mi"), 6, "64.0 MiB", "sizeLimit",
                   "resources.limits.memory")
