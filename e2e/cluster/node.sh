# shellcheck shell=bash disable=SC2034,SC2154
# Configure and start the programs of the cluster: source it, do not run it. Each start_… waits until its program serves.

start_etcd() {
    launch etcd "$BIN/etcd" --name e2e --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls "http://127.0.0.1:$ETCD_PORT" --advertise-client-urls "http://127.0.0.1:$ETCD_PORT" \
        --listen-peer-urls http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
        --initial-cluster e2e=http://127.0.0.1:12380
}

start_apiserver() {
    # The node's name resolves nowhere: kubelets are reached by address.
    launch apiserver "$BIN/kube-apiserver" --etcd-servers "http://127.0.0.1:$ETCD_PORT" \
        --bind-address "$ADDRESS" --advertise-address "$ADDRESS" --secure-port "$API_PORT" \
        --tls-cert-file "$KEYS/apiserver.crt" --tls-private-key-file "$KEYS/apiserver.key" \
        --client-ca-file "$KEYS/ca.crt" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
        --allow-privileged=true --service-cluster-ip-range "$SERVICE_CIDR" \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$KEYS/sa.pub" \
        --service-account-signing-key-file "$KEYS/sa.key" --kubelet-certificate-authority "$KEYS/ca.crt" \
        --kubelet-client-certificate "$KEYS/kubelet-client.crt" --kubelet-client-key "$KEYS/kubelet-client.key" \
        --kubelet-preferred-address-types InternalIP --request-timeout "$((60 * SLOWER))s" \
        --etcd-healthcheck-timeout "$((2 * SLOWER))s" --etcd-readycheck-timeout "$((2 * SLOWER))s"
}

configure_containerd() {
    cat >"$CONF/containerd.toml" <<TOML
version = 3
root = "$STATE/containerd/root"
state = "$STATE/containerd/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "$CONTAINERD_SOCKET"
[plugins."io.containerd.internal.v1.opt"]
  path = "$STATE/containerd/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE runc may not lower a score, and every sandbox would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$CNI"]
    conf_dir = "$CONF/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
TOML
    mkdir -p "$CONF/cni"
    # No masquerading: pods have no way out of the machine, which is what a test wants.
    cat >"$CONF/cni/10-e2e.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "e2e", "plugins": [
  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$STATE/cni",
            "ranges": [[{"subnet": "$POD_CIDR", "gateway": "$ADDRESS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
}

start_containerd() {
    configure_containerd
    # The shim is found beside containerd, not in the system.
    launch containerd env PATH="$BIN:$PATH" "$BIN/containerd" --config "$CONF/containerd.toml" --log-level warn
}

import_images() {
    local image
    for image in "$PARTS"/images/*.tar; do
        ctr images import "$image" >/dev/null || die "cannot import $image"
    done
}

configure_kubelet() {
    : >"$CONF/resolv.conf"
    cat >"$CONF/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $ADDRESS
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $KEYS/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $KEYS/kubelet.crt
tlsPrivateKeyFile: $KEYS/kubelet.key
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [$ADDRESS]
clusterDomain: cluster.local
resolvConf: $CONF/resolv.conf
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
volumePluginDir: $STATE/plugins
# Images were imported and cannot be pulled again; a full disk is not a reason to evict.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard:
  {memory.available: 100Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%",
   imagefs.inodesFree: "0%"}
makeIPTablesUtilChains: false
registerNode: true
maxPods: 110
syncFrequency: 10s
volumeStatsAggPeriod: 5s
nodeStatusUpdateFrequency: $((5 * SLOWER))s
nodeLeaseDurationSeconds: $((40 * SLOWER))
runtimeRequestTimeout: $((120 * SLOWER))s
YAML
}

start_kubelet() {
    configure_kubelet
    launch kubelet "$BIN/kubelet" --config "$CONF/kubelet.yaml" --kubeconfig "$CONF/kubelet.kubeconfig" \
        --hostname-override "$NODE" --node-ip "$ADDRESS"
}

start_controllers() {
    launch controllers "$BIN/kube-controller-manager" --kubeconfig "$CONF/controller-manager.kubeconfig" \
        --authentication-kubeconfig "$CONF/controller-manager.kubeconfig" \
        --authorization-kubeconfig "$CONF/controller-manager.kubeconfig" \
        --use-service-account-credentials --root-ca-file "$KEYS/ca.crt" \
        --service-account-private-key-file "$KEYS/sa.key" --leader-elect=false --bind-address 127.0.0.1 \
        --node-monitor-grace-period "$((50 * SLOWER))s"
    launch scheduler "$BIN/kube-scheduler" --kubeconfig "$CONF/scheduler.kubeconfig" \
        --authentication-kubeconfig "$CONF/scheduler.kubeconfig" \
        --authorization-kubeconfig "$CONF/scheduler.kubeconfig" --leader-elect=false --bind-address 127.0.0.1
}

start_proxy() {
    cat >"$CONF/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $CONF/proxy.kubeconfig}
clusterCIDR: $POD_CIDR
hostnameOverride: $NODE
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
    launch proxy "$BIN/kube-proxy" --config "$CONF/proxy.yaml"
}

start_dns() {
    # store.test is the machine: a test's object store has a name as a real one has.
    cat >"$CONF/Corefile" <<CONF
.:53 {
    bind $ADDRESS
    errors
    hosts {
        $ADDRESS store.test
        fallthrough
    }
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $KUBECONFIG_FILE
        pods insecure
    }
    cache 5
}
CONF
    launch dns "$BIN/coredns" -conf "$CONF/Corefile"
}
