{{/*
The containers that load, and what they need around them. For this chart's own pods and, included from other charts,
for any pod spec. Each takes a dict:

  root       this chart's context: `$` here, `$.Subcharts.sluice` in a chart that depends on it
  model      a name from `models`; or
  models     the word "all"; for sluice.volumes also a list of names, when each has a container of its own; or
  uri        an object, prefix or index, published into modelsPath/NAME of `name`, and `size`, what it takes
  volume     source of the volume that models lie in; a memory emptyDir of their size unless given
  volumeName its name, when the pod has it already; then `sluice.volumes` does not make it
  resources, extraArgs, extraEnv, containerName    for this container alone
  port       where it listens; sidecars do, at sidecar.port unless given
*/}}

{{- define "sluice.needRoot" -}}
{{- if not (and (hasKey . "root") .root) -}}
{{- fail "sluice: `root` is missing from the dict: give it $, or $.Subcharts.sluice in a chart that depends on this one" -}}
{{- end -}}
{{- end -}}

{{- define "sluice.modelNames" -}}
{{- if .uri -}}
{{- list | toJson -}}
{{- else if eq (toString .models) "all" -}}
{{- include "sluice.loadable" .root -}}
{{- else if .models -}}
{{- if not (or .specFile .forVolumes) -}}
{{- fail "sluice: `models` of a container to load can only be \"all\": include one container for each `model` (with a `containerName` of its own, and their names as `models` of sluice.volumes), or load all" -}}
{{- end -}}
{{- .models | toJson -}}
{{- else -}}
{{- $known := include "sluice.loadable" .root | fromJsonArray -}}
{{- if not .model -}}
{{- fail "sluice: a container to load needs `model` (a name from the chart's `models`), `models` \"all\", or `uri`" -}}
{{- end -}}
{{- if and (hasKey .root.Values.models .model) (not (has .model $known)) -}}
{{- fail (printf "sluice: '%s' lies in the pool of the node daemon, so no container loads it: attach to it, or take sink.pool out of models.%s.spec" .model .model) -}}
{{- end -}}
{{- if not (has .model $known) -}}
{{- fail (printf "sluice: no model is called '%s' in the chart's `models`: add models.%s, or name one of: %s" .model .model (join ", " $known)) -}}
{{- end -}}
{{- list .model | toJson -}}
{{- end -}}
{{- end -}}

{{/* Bytes that the models of a dict take, or 0. */}}
{{- define "sluice.modelBytes" -}}
{{- if .uri -}}
{{- with .size -}}{{- include "sluice.bytes" . -}}{{- else -}}0{{- end -}}
{{- else -}}
{{- include "sluice.sizeOf" (dict "root" .root "names" (include "sluice.modelNames" . | fromJsonArray)) -}}
{{- end -}}
{{- end -}}

{{/* Do the models of a dict lie in memory? "true" or "". A volume that the pod has already is not judged. */}}
{{- define "sluice.inMemory" -}}
{{- if not .volumeName -}}
{{- if or (not .volume) (eq (dig "emptyDir" "medium" "" (default dict .volume)) "Memory") -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The resources of a dict: a memory limit is added where there is none. What is loaded into memory is charged here. */}}
{{- define "sluice.loaderResources" -}}
{{- $bytes := include "sluice.modelBytes" . | int64 -}}
{{- $resources := deepCopy (default .root.Values.loader.resources .resources) -}}
{{- $given := dig "limits" "memory" "" $resources -}}
{{- $limit := include "sluice.mebibytes" (add $bytes (include "sluice.bytes" .root.Values.loader.heap | int64)) -}}
{{- if and $given (include "sluice.inMemory" .) (lt (include "sluice.bytes" $given | int64) (add $bytes 67108864)) -}}
{{- fail (printf "sluice: a memory limit of %v cannot hold %s of models and the 64Mi that a load wants free: set it to at least %s, or leave it out" $given (include "sluice.mebibytes" $bytes) $limit) -}}
{{- end -}}
{{- if not $given -}}
{{- if not $bytes -}}
{{- $where := ternary "`size` beside `uri`" (printf "models.%s.size" (default "NAME" .model)) (hasKey . "uri") -}}
{{- fail (printf "sluice: a container to load needs a memory limit: set %s (`sluice plan` shows it), or loader.resources.limits.memory" $where) -}}
{{- end -}}
{{- $_ := set $resources "limits" (merge (dict "memory" $limit) (default dict $resources.limits)) -}}
{{- if not (dig "requests" "memory" "" $resources) -}}
{{- $_ := set $resources "requests" (merge (dict "memory" $limit) (default dict $resources.requests)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "sluice.settingArgs" -}}
{{- range $key, $value := .root.Values.loader.settings }}
- {{ printf "--set=%s=%s" $key (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end -}}

{{- define "sluice.loadArgs" -}}
- load
{{- if .uri }}
- {{ .uri | quote }}
- {{ printf "--to=%s/%s" .root.Values.modelsPath (required "sluice: `uri` needs `name`, what the model is called" .name) | quote }}
- {{ printf "--name=%s" .name | quote }}
{{- with include "sluice.throughArgs" .root }}
{{ . }}
{{- end }}
{{- else if .specFile }}
- /etc/sluice/specs/{{ .specFile }}
{{- else if eq (toString .models) "all" }}
- /etc/sluice/specs/all.yaml
{{- else }}
- /etc/sluice/specs/{{ .model }}.yaml
{{- end }}
- --log-format={{ .root.Values.loader.logFormat }}
- --log-level={{ .root.Values.loader.logLevel }}
{{- include "sluice.settingArgs" . }}
{{- end -}}

{{- define "sluice.environment" -}}
{{- $credentials := .root.Values.credentials -}}
{{- $env := list -}}
{{- with $credentials.secretKeys -}}
{{- if .name -}}
{{- $env = append $env (dict "name" "AWS_ACCESS_KEY_ID" "valueFrom" (dict "secretKeyRef" (dict "name" .name "key" .accessKey))) -}}
{{- $env = append $env (dict "name" "AWS_SECRET_ACCESS_KEY" "valueFrom" (dict "secretKeyRef" (dict "name" .name "key" .secretKey))) -}}
{{- if .endpoint -}}
{{- $env = append $env (dict "name" "AWS_ENDPOINT_URL" "valueFrom" (dict "secretKeyRef" (dict "name" .name "key" .endpoint))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $credentials.home.secretName -}}
{{- $env = append $env (dict "name" "HOME" "value" "/etc/sluice/home") -}}
{{- end -}}
{{- if $credentials.webIdentity.enabled -}}
{{- $env = append $env (dict "name" "AWS_ROLE_ARN" "value" $credentials.webIdentity.roleArn) -}}
{{- $env = append $env (dict "name" "AWS_WEB_IDENTITY_TOKEN_FILE" "value" "/etc/sluice/token/token") -}}
{{- end -}}
{{- if include "sluice.hasCa" .root -}}
{{- $env = append $env (dict "name" "SSL_CERT_FILE" "value" (printf "/etc/sluice/ca/%s" .root.Values.caBundle.key)) -}}
{{- end -}}
{{- $env = concat $env (include "sluice.zoneEnvironment" .root | fromYamlArray) -}}
{{- concat $env .root.Values.loader.extraEnv (default list .extraEnv) | toYaml -}}
{{- end -}}

{{- define "sluice.environmentFrom" -}}
{{- $from := list -}}
{{- with .root.Values.credentials.envFromSecret -}}
{{- $from = append $from (dict "secretRef" (dict "name" .)) -}}
{{- end -}}
{{- concat $from .root.Values.loader.extraEnvFrom | toYaml -}}
{{- end -}}

{{/* What an engine is told of its caches, and the folders below `sink.caches.path`: src/load/sets/sets.def. */}}
{{- define "sluice.engineCacheFolders" -}}
VLLM_CACHE_ROOT: vllm
VLLM_XLA_CACHE_PATH: xla
TORCHINDUCTOR_CACHE_DIR: inductor
TRITON_CACHE_DIR: triton
DG_JIT_CACHE_DIR: deep_gemm
SGLANG_DG_CACHE_DIR: sglang_deep_gemm
SGLANG_CACHE_DIR: sglang
FLASHINFER_WORKSPACE_BASE: flashinfer
TVM_FFI_CACHE_DIR: tvm_ffi
TILELANG_CACHE_DIR: tilelang
CUTE_DSL_CACHE_DIR: cute_dsl
CUDA_CACHE_PATH: cuda
{{- end -}}

{{/* `sink.caches.path` of the first model of a dict that has engine caches; "" if none has. */}}
{{- define "sluice.engineCaches" -}}
{{- if and (or .model .models) (not .uri) -}}
{{- $models := .root.Values.models -}}
{{- $paths := list -}}
{{- range include "sluice.modelNames" (merge (dict "forVolumes" true) .) | fromJsonArray -}}
{{- $paths = append $paths (dig "sink" "caches" "path" "" (default dict (get (default dict (get $models .)) "spec"))) -}}
{{- end -}}
{{- with compact $paths -}}{{- first . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Their volume, where loader and engine both write. */}}
{{- define "sluice.engineCachesMount" -}}
{{- with include "sluice.engineCaches" . }}
- name: sluice-engine-caches
  mountPath: {{ dir . }}
{{- end }}
{{- end -}}

{{/* Elements of the engine's env: where its caches are. */}}
{{- define "sluice.engineEnv" -}}
{{- include "sluice.needRoot" . -}}
{{- $path := include "sluice.engineCaches" . -}}
{{- if $path -}}
{{- range $name, $folder := include "sluice.engineCacheFolders" . | fromYaml }}
- name: {{ $name }}
  value: {{ printf "%s/%s" $path $folder | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "sluice.loaderMounts" -}}
- name: {{ default "sluice-models" .volumeName }}
  mountPath: {{ .root.Values.modelsPath }}
{{- include "sluice.engineCachesMount" . }}
{{- if not .uri }}
- name: sluice-specs
  mountPath: /etc/sluice/specs
  readOnly: true
{{- end }}
{{- if .root.Values.credentials.home.secretName }}
- name: sluice-home
  mountPath: /etc/sluice/home
  readOnly: true
{{- end }}
{{- if .root.Values.credentials.webIdentity.enabled }}
- name: sluice-token
  mountPath: /etc/sluice/token
  readOnly: true
{{- end }}
{{- if include "sluice.hasCa" .root }}
- name: sluice-ca
  mountPath: /etc/sluice/ca
  readOnly: true
{{- end }}
{{- range $i, $mount := .root.Values.secretMounts }}
- name: sluice-secret-{{ $i }}
  mountPath: {{ $mount.path }}
  readOnly: true
{{- end }}
{{- with .root.Values.loader.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The common part of both containers. */}}
{{- define "sluice.loader" -}}
{{- include "sluice.needRoot" . -}}
name: {{ default "sluice-load" .containerName }}
image: {{ include "sluice.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
  {{- if .args }}
  {{- range .args }}
  - {{ . | quote }}
  {{- end }}
  {{- else }}
  {{- include "sluice.loadArgs" . | nindent 2 }}
  {{- end }}
  {{- if .stay }}
  - --stay
  {{- end }}
  {{- with .port }}
  - --listen=:{{ int . }}
  {{- end }}
  {{- range concat .root.Values.loader.extraArgs (default list .extraArgs) }}
  - {{ . | quote }}
  {{- end }}
{{- with include "sluice.environment" . | fromYamlArray }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "sluice.environmentFrom" . | fromYamlArray }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- include "sluice.loaderResources" . | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.loader.securityContext | nindent 2 }}
terminationMessagePolicy: {{ .root.Values.loader.terminationMessagePolicy }}
{{- with .port }}
ports:
  - name: sluice-metrics
    containerPort: {{ int . }}
{{- end }}
volumeMounts:
  {{- include "sluice.loaderMounts" . | nindent 2 }}
{{- end -}}

{{/* One element of initContainers: loads, publishes, ends. */}}
{{- define "sluice.initContainer" -}}
- {{ include "sluice.loader" . | nindent 2 | trim }}
{{- end -}}

{{/* One element of initContainers: loads, publishes, stays, and serves health and metrics. */}}
{{- define "sluice.sidecar" -}}
{{- include "sluice.needRoot" . -}}
{{- $sidecar := .root.Values.sidecar -}}
{{- $own := dict "stay" true "port" (default $sidecar.port .port) -}}
- {{ include "sluice.loader" (merge $own .) | nindent 2 | trim }}
  restartPolicy: Always
  startupProbe:
    httpGet: {path: /startupz, port: sluice-metrics}
    {{- toYaml $sidecar.startupProbe | nindent 4 }}
  readinessProbe:
    httpGet: {path: /readyz, port: sluice-metrics}
    {{- toYaml $sidecar.readinessProbe | nindent 4 }}
  livenessProbe:
    httpGet: {path: /healthz, port: sluice-metrics}
    {{- toYaml $sidecar.livenessProbe | nindent 4 }}
{{- end -}}

{{/* The volumes of the pod around either. */}}
{{- define "sluice.volumes" -}}
{{- include "sluice.needRoot" . -}}
{{- $values := .root.Values -}}
{{- if not .volumeName -}}
- name: sluice-models
  {{- if .volume }}
  {{- toYaml .volume | nindent 2 }}
  {{- else }}
  emptyDir:
    medium: Memory
    {{- $bytes := include "sluice.modelBytes" (merge (dict "forVolumes" true) .) | int64 }}
    {{- if $bytes }}
    # The models, and 64 MiB for what is published beside them.
    sizeLimit: {{ include "sluice.mebibytes" (add $bytes 67108864) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if include "sluice.engineCaches" . }}
- name: sluice-engine-caches
  emptyDir: {}
{{- end }}
{{- if not .uri }}
- name: sluice-specs
  configMap:
    name: {{ include "sluice.specsName" .root }}
{{- end }}
{{- with $values.credentials.home }}
{{- if .secretName }}
- name: sluice-home
  secret:
    secretName: {{ .secretName }}
    {{- with .items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- end }}
{{- with $values.credentials.webIdentity }}
{{- if .enabled }}
- name: sluice-token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ .audience | quote }}
          expirationSeconds: {{ int .expirationSeconds }}
{{- end }}
{{- end }}
{{- with include "sluice.caVolume" .root }}
{{ . }}
{{- end }}
{{- range $i, $mount := $values.secretMounts }}
- name: sluice-secret-{{ $i }}
  secret:
    secretName: {{ $mount.secret }}
{{- end }}
{{- with $values.loader.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The certificates of a private CA, for all containers that ask stores. */}}
{{- define "sluice.caVolume" -}}
{{- if .Values.caBundle.configMap -}}
- name: sluice-ca
  configMap:
    name: {{ .Values.caBundle.configMap }}
{{- else if .Values.caBundle.secret -}}
- name: sluice-ca
  secret:
    secretName: {{ .Values.caBundle.secret }}
{{- end -}}
{{- end -}}

{{/* Elements of the engine's volumeMounts: the models, read-only, and its caches. */}}
{{- define "sluice.volumeMount" -}}
{{- include "sluice.needRoot" . -}}
- name: {{ default "sluice-models" .volumeName }}
  mountPath: {{ .root.Values.modelsPath }}
  readOnly: true
{{- include "sluice.engineCachesMount" . }}
{{- end -}}

{{/* Labels of a pod with a sidecar: the monitors of this chart find it by them. */}}
{{- define "sluice.podLabels" -}}
sluice/scrape: "true"
{{- end -}}

{{/* Annotations of a pod: it is replaced when the specs that it mounts change. */}}
{{- define "sluice.podAnnotations" -}}
checksum/sluice-specs: {{ printf "%s%s" (toJson .root.Values.models) (ternary (include "sluice.through" .root) "" .root.Values.caches.enabled) | sha256sum }}
{{- end -}}
