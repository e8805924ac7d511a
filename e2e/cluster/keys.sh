# shellcheck shell=bash disable=SC2034,SC2154
# A certificate authority, one key pair for each program, and their kubeconfigs: source it, do not run it.

# key_pair NAME SUBJECT [SAN]: NAME.key and NAME.crt signed by the authority, good for a week, both ways.
key_pair() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$KEYS/$1.key"
    printf 'extendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n%s' "${3:+subjectAltName=$3}" >"$KEYS/$1.ext"
    openssl req -new -key "$KEYS/$1.key" -subj "$2" |
        openssl x509 -req -CA "$KEYS/ca.crt" -CAkey "$KEYS/ca.key" -CAcreateserial -days 7 -extfile "$KEYS/$1.ext" \
            -out "$KEYS/$1.crt"
}

make_keys() {
    mkdir -p "$KEYS"
    chmod 0700 "$KEYS"
    {
        openssl ecparam -name prime256v1 -genkey -noout -out "$KEYS/ca.key"
        openssl req -x509 -new -key "$KEYS/ca.key" -days 7 -subj "/CN=sluice-e2e-ca" -out "$KEYS/ca.crt"
        openssl ecparam -name prime256v1 -genkey -noout -out "$KEYS/sa.key"
        openssl ec -in "$KEYS/sa.key" -pubout -out "$KEYS/sa.pub"
        key_pair apiserver /CN=kube-apiserver \
            "IP:$ADDRESS,IP:${SERVICE_CIDR%.*}.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
        key_pair admin /O=system:masters/CN=admin
        key_pair kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
        key_pair kubelet "/O=system:nodes/CN=system:node:$NODE" "IP:$ADDRESS,DNS:$NODE"
        key_pair controller-manager /CN=system:kube-controller-manager
        key_pair scheduler /CN=system:kube-scheduler
        key_pair proxy /CN=system:kube-proxy
    } 2>"$LOGS/keys.log" || die "openssl failed: $(tail -n 3 "$LOGS/keys.log")"
    local name
    for name in kubelet controller-manager scheduler proxy; do
        kubeconfig "$name" >"$CONF/$name.kubeconfig"
    done
    kubeconfig admin >"$KUBECONFIG_FILE"
    chmod 0600 "$KUBECONFIG_FILE"
}

# kubeconfig NAME: how NAME reaches the API.
kubeconfig() {
    cat <<YAML
apiVersion: v1
kind: Config
clusters:
- name: e2e
  cluster: {server: "https://$ADDRESS:$API_PORT", certificate-authority: $KEYS/ca.crt}
users:
- name: $1
  user: {client-certificate: $KEYS/$1.crt, client-key: $KEYS/$1.key}
contexts:
- name: e2e
  context: {cluster: e2e, user: $1}
current-context: e2e
YAML
}
