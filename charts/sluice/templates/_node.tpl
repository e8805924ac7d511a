{{/*
The node daemon: its config, its container, what it needs of the node. docs/csi.md.
*/}}

{{- define "sluice.nodeName" -}}
{{- printf "%s-node" (include "sluice.fullname" .) -}}
{{- end -}}

{{/* Names of the models of the node's config, as a JSON list. */}}
{{- define "sluice.nodeModels" -}}
{{- default (keys .Values.models | sortAlpha) .Values.node.models | toJson -}}
{{- end -}}

{{- define "sluice.driverFolder" -}}
{{- printf "%s/plugins/%s" .Values.node.csi.kubeletDirectory .Values.node.csi.driverName -}}
{{- end -}}

{{/* dict "root" $ "name" NAME: the spec of a model as the daemon reads it: loader.settings are in it, since no flag carries them, and
nothing of engine caches, which are the engines' pods' own. */}}
{{- define "sluice.nodeSpec" -}}
{{- $spec := include "sluice.spec" (merge (dict "ofNode" true) .) | fromYaml -}}
{{- $_ := unset $spec.sink "caches" -}}
{{- if hasKey $spec.sink "tmpfs" -}}
{{- $_ := unset $spec.sink.tmpfs "path" -}}
{{- if not $spec.sink.tmpfs -}}
{{- $_ := unset $spec.sink "tmpfs" -}}
{{- end -}}
{{- end -}}
{{- if not $spec.sink -}}
{{- $_ := unset $spec "sink" -}}
{{- end -}}
{{- range $key, $value := .root.Values.loader.settings -}}
{{- $parts := splitList "." $key -}}
{{- $made := dict (last $parts) $value -}}
{{- range initial $parts | reverse -}}
{{- $made = dict . $made -}}
{{- end -}}
{{- if not (and (eq (first $parts) "sink") (include "sluice.poolDevice" $)) -}}
{{- $spec = mergeOverwrite $spec $made -}}
{{- end -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}

{{/* `kind: Node`. Everything that it names is at the same path on the node and in the container. */}}
{{- define "sluice.nodeConfig" -}}
{{- $node := .Values.node -}}
{{- $memory := printf "%s/memory" $node.directory -}}
{{- $models := list -}}
{{- range include "sluice.nodeModels" . | fromJsonArray -}}
{{- $models = append $models (dict "file" (printf "%s.yaml" .) "pin" $node.pin) -}}
{{- end -}}
{{- $config := dict "directory" (printf "%s/models" $memory) "budgetBytes" (include "sluice.bytes" $node.budget | int64)
    "loadsAtOnce" (int $node.loadsAtOnce) "listen" (printf ":%d" (int $node.port)) "models" $models
    "selinuxLabel" $node.selinuxLabel "control" (dict "socket" (printf "%s/control.sock" $node.directory)) -}}
{{- if .Values.caches.enabled -}}
{{- $_ := set $config "through" (include "sluice.through" . | fromJson) -}}
{{- end -}}
{{- if $node.tmpfs.mount -}}
{{- $_ := set $config "tmpfs" (dict "path" $memory "huge" $node.tmpfs.huge) -}}
{{- end -}}
{{- if $node.pool.enabled -}}
{{- $pool := dict "socket" (printf "%s/pool/pool.sock" $node.directory) "directory" (printf "%s/slabs" $memory) -}}
{{- range $key := list "mode" "uids" "gids" "uriPrefixes" -}}
{{- with get $node.pool $key -}}
{{- $_ := set $pool $key . -}}
{{- end -}}
{{- end -}}
{{- if $node.gpu.enabled -}}
{{- $_ := set $pool "gpuWarmSeconds" (int $node.gpu.warmSeconds) -}}
{{- with $node.gpu.budget -}}
{{- $_ := set $pool "gpuBudgetBytes" (include "sluice.bytes" . | int64) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "pool" $pool -}}
{{- end -}}
{{- if $node.csi.enabled -}}
{{- $registration := printf "%s/plugins_registry/%s-reg.sock" $node.csi.kubeletDirectory $node.csi.driverName -}}
{{- $_ := set $config "csi" (dict "enabled" true "driverName" $node.csi.driverName
    "socket" (printf "%s/csi.sock" (include "sluice.driverFolder" .))
    "registration" (ternary $registration "" (eq $node.csi.registration "builtin"))
    "kubeletDirectory" $node.csi.kubeletDirectory "waitSeconds" (int $node.csi.waitSeconds)
    "hideVolumes" $node.csi.hideVolumes
    "namespaces" $node.csi.namespaces) -}}
{{- end -}}
apiVersion: sluice/v1alpha1
kind: Node
{{ toYaml $config }}
{{- end -}}

{{/* Without a memory limit: the budget and the heap, asked for and at most. */}}
{{- define "sluice.nodeResources" -}}
{{- $resources := deepCopy .Values.node.resources -}}
{{- if not (dig "limits" "memory" "" $resources) -}}
{{- $limit := include "sluice.mebibytes" (add (include "sluice.bytes" .Values.node.budget | int64) (include "sluice.bytes" .Values.node.heap | int64)) -}}
{{- $_ := set $resources "limits" (merge (dict "memory" $limit) (default dict $resources.limits)) -}}
{{- if not (dig "requests" "memory" "" $resources) -}}
{{- $_ := set $resources "requests" (merge (dict "memory" $limit) (default dict $resources.requests)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Folders of the node: name, path, whether mounts made in it are seen outside. Only what is named here is reached. */}}
{{- define "sluice.nodeFolders" -}}
{{- $csi := .Values.node.csi -}}
{{- $folders := list (dict "name" "node" "path" .Values.node.directory "shared" .Values.node.securityContext.privileged) -}}
{{- if $csi.enabled -}}
{{- $folders = append $folders (dict "name" "pods" "path" (printf "%s/pods" $csi.kubeletDirectory) "shared" true) -}}
{{- $folders = append $folders (dict "name" "driver" "path" (include "sluice.driverFolder" .)) -}}
{{- if eq $csi.registration "builtin" -}}
{{- $folders = append $folders (dict "name" "registry" "path" (printf "%s/plugins_registry" $csi.kubeletDirectory)) -}}
{{- end -}}
{{- end -}}
{{- $folders | toJson -}}
{{- end -}}

{{/* What of node.gpu is in effect: runtime, claim, host, or "". */}}
{{- define "sluice.gpuAccess" -}}
{{- if .Values.node.gpu.enabled -}}{{- .Values.node.gpu.access -}}{{- end -}}
{{- end -}}

{{/* What brings NVIDIA's driver into the container: its runtime reads two variables; of a folder the dynamic loader must be told. */}}
{{- define "sluice.gpuEnvironment" -}}
{{- $access := include "sluice.gpuAccess" . -}}
{{- if eq $access "runtime" }}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ .Values.node.gpu.visibleDevices | quote }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: compute,utility
{{- else if eq $access "host" }}
- name: LD_LIBRARY_PATH
  value: {{ include "sluice.driverMount" . }}
{{- end -}}
{{- end -}}

{{- define "sluice.driverMount" -}}
/usr/local/nvidia/lib64
{{- end -}}

{{- define "sluice.nodeContainer" -}}
{{- $node := .Values.node -}}
{{- $load := dict "root" . "uri" "none" "volumeName" "node" -}}
name: sluice-node
image: {{ include "sluice.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  - /etc/sluice/node/node.yaml
  - --log-format={{ .Values.loader.logFormat }}
  - --log-level={{ .Values.loader.logLevel }}
  {{- range $node.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  {{- with .Values.metrics.rules.docsUrl }}
  - name: SLUICE_DOCS_URL
    value: {{ . | quote }}
  {{- end }}
  {{- with concat (include "sluice.gpuEnvironment" . | fromYamlArray) (include "sluice.environment" $load | fromYamlArray) $node.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "sluice.environmentFrom" $load | fromYamlArray }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- include "sluice.nodeResources" . | nindent 2 }}
  {{- if eq (include "sluice.gpuAccess" .) "claim" }}
  claims:
    - name: gpus
  {{- end }}
securityContext:
  {{- toYaml $node.securityContext | nindent 2 }}
terminationMessagePolicy: {{ .Values.loader.terminationMessagePolicy }}
ports:
  - name: sluice-metrics
    containerPort: {{ int $node.port }}
startupProbe:
  httpGet: {path: /healthz, port: sluice-metrics}
  {{- toYaml $node.startupProbe | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: sluice-metrics}
  {{- toYaml $node.readinessProbe | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: sluice-metrics}
  {{- toYaml $node.livenessProbe | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/sluice/node
    readOnly: true
  {{- range include "sluice.nodeFolders" . | fromJsonArray }}
  - name: {{ .name }}
    mountPath: {{ .path }}
    {{- if .shared }}
    mountPropagation: Bidirectional
    {{- end }}
  {{- end }}
  {{- with rest (include "sluice.loaderMounts" $load | fromYamlArray) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if eq (include "sluice.gpuAccess" .) "host" }}
  - name: gpu-driver
    mountPath: {{ include "sluice.driverMount" . }}
    readOnly: true
  {{- end }}
  {{- with $node.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* "true" where the cluster has SecurityContextConstraints; "" elsewhere. */}}
{{- define "sluice.onOpenShift" -}}
{{- if or .Values.node.openshift.force (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}true{{- end -}}
{{- end -}}

{{/* What comes before the slash of a label. */}}
{{- define "sluice.labelPrefix" -}}
{{- default (printf "model.%s" .Values.node.csi.driverName) .Values.node.labels.prefix -}}
{{- end -}}

{{/* Its objects have no namespace, or are named by other namespaces' objects. */}}
{{- define "sluice.labelsName" -}}
{{- printf "%s.%s" (include "sluice.nodeName" .) (include "sluice.namespace" .) -}}
{{- end -}}

{{/* The one container that holds a token of the cluster; it has nothing of the daemon's. */}}
{{- define "sluice.labeller" -}}
{{- $labels := .Values.node.labels -}}
name: label
image: {{ include "sluice.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - label
  - --daemon=http://127.0.0.1:{{ int .Values.node.port }}
  - --prefix={{ include "sluice.labelPrefix" . }}
  - --every-seconds={{ int $labels.everySeconds }}
  {{- with $labels.startupTaint }}
  - --startup-taint={{ . }}
  - --driver={{ $.Values.node.csi.driverName }}
  {{- end }}
  - --log-format={{ .Values.loader.logFormat }}
  - --log-level={{ .Values.loader.logLevel }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
resources:
  {{- toYaml $labels.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.loader.securityContext | nindent 2 }}
terminationMessagePolicy: {{ .Values.loader.terminationMessagePolicy }}
volumeMounts:
  - name: account
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
{{- end -}}

{{- define "sluice.registrar" -}}
{{- $registrar := .Values.node.csi.registrar -}}
{{- $socket := printf "%s/csi.sock" (include "sluice.driverFolder" .) -}}
name: registrar
image: {{ include "sluice.image" (dict "Values" (dict "global" .Values.global "image" $registrar) "Chart" .Chart) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - --csi-address={{ $socket }}
  - --kubelet-registration-path={{ $socket }}
resources:
  {{- toYaml $registrar.resources | nindent 2 }}
securityContext:
  {{- toYaml $registrar.securityContext | nindent 2 }}
volumeMounts:
  - name: driver
    mountPath: {{ include "sluice.driverFolder" . }}
  - name: registry
    mountPath: /registration
{{- end -}}
