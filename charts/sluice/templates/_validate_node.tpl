{{/* What of `node` can never work: as in _validate.tpl, lists of complaints. */}}

{{- define "sluice.validateNode" -}}
{{- $wrong := list -}}
{{- $wrong = include "sluice.validatePool" . | fromJsonArray -}}
{{- if .Values.node.enabled -}}
{{- $wrong = concat $wrong (include "sluice.validateNodeModels" . | fromJsonArray) (include "sluice.validateGpu" . | fromJsonArray) -}}
{{- if not .Values.node.budget -}}
{{- $wrong = append $wrong "node.budget: how much memory may models take on each node? Set it, as in 200Gi" -}}
{{- else if not $wrong -}}
{{- $wrong = include "sluice.validateNodeRoom" . | fromJsonArray -}}
{{- end -}}
{{- $wrong = concat $wrong (include "sluice.validateLabels" . | fromJsonArray) -}}
{{- if .Values.node.csi.enabled -}}
{{- $wrong = concat $wrong (include "sluice.validateCsi" . | fromJsonArray) -}}
{{- else if and .Values.node.tmpfs.mount (not .Values.node.securityContext.privileged) -}}
{{- $wrong = append $wrong "node.tmpfs.mount: a tmpfs that stays on the node when the pod goes takes node.securityContext.privileged: set it, or mount one on every node and set node.tmpfs.mount to false" -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* Models of the pool need a daemon that has it, and a GPU where they name one. */}}
{{- define "sluice.validatePool" -}}
{{- $wrong := list -}}
{{- $node := .Values.node -}}
{{- range $name := keys .Values.models | sortAlpha -}}
{{- $device := include "sluice.poolDevice" (dict "root" $ "name" $name) -}}
{{- if and $device (not (and $node.enabled $node.pool.enabled)) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.sink.pool: the node daemon alone has a pool: set node.enabled and node.pool.enabled, or leave sink out" $name) -}}
{{- else if and $device (ne $device "host") (not $node.gpu.enabled) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.sink.pool.device: the daemon has no GPU, and %s is one: set node.gpu.enabled, or leave device out" $name $device) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateGpu" -}}
{{- $wrong := list -}}
{{- $node := .Values.node -}}
{{- $gpu := $node.gpu -}}
{{- if $gpu.enabled -}}
{{- if not $node.pool.enabled -}}
{{- $wrong = append $wrong "node.gpu.enabled: memory of GPUs is handed out by the pool: set node.pool.enabled" -}}
{{- end -}}
{{- if not $gpu.access -}}
{{- $wrong = append $wrong "node.gpu.access: how does a container of this cluster get GPUs? Set runtime, claim or host (docs/gpu.md)" -}}
{{- else if and (eq $gpu.access "claim") (not $gpu.claimTemplate) -}}
{{- $wrong = append $wrong "node.gpu.claimTemplate: name the ResourceClaimTemplate that the daemon's pods take their GPUs by" -}}
{{- else if and (eq $gpu.access "claim") (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $wrong = append $wrong (printf "node.gpu.access: Kubernetes %s has no ResourceClaims that hold: set runtime or host, or upgrade to 1.34" .Capabilities.KubeVersion.Version) -}}
{{- else if eq $gpu.access "host" -}}
{{- if not $gpu.driverDirectory -}}
{{- $wrong = append $wrong "node.gpu.driverDirectory: name the folder of the nodes that has libcuda.so.1" -}}
{{- end -}}
{{- if not $node.securityContext.privileged -}}
{{- $wrong = append $wrong "node.gpu.access: only a privileged container sees the node's GPUs without a runtime of their maker: set node.securityContext.privileged, or access to runtime or claim" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateLabels" -}}
{{- $wrong := list -}}
{{- if and .Values.node.labels.startupTaint (not (and .Values.node.labels.enabled .Values.node.csi.enabled)) -}}
{{- $wrong = append $wrong "node.labels.startupTaint: the container of node.labels removes it when node.csi has its driver registered: set node.labels.enabled and node.csi.enabled, or leave the taint out" -}}
{{- end -}}
{{- if .Values.node.labels.enabled -}}
{{- if and .Values.node.labels.policy (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $wrong = append $wrong (printf "node.labels.policy: Kubernetes %s has no ValidatingAdmissionPolicy: set it to false if the account may patch every node" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.networkPolicy.egress.enabled (not .Values.networkPolicy.egress.extra) -}}
{{- $wrong = append $wrong "node.labels: the container must reach the API server: add a rule for its addresses to networkPolicy.egress.extra" -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateNodeModels" -}}
{{- $wrong := list -}}
{{- range .Values.node.models -}}
{{- if not (hasKey $.Values.models .) -}}
{{- $wrong = append $wrong (printf "node.models: '%s' is not in models: add it there, or take it out here" .) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.models "node" -}}
{{- $wrong = append $wrong "models.node: the config of the node daemon has that name: call the model otherwise" -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* Do the models fit into the budget, and the budget into the memory limit? */}}
{{- define "sluice.validateNodeRoom" -}}
{{- $node := .Values.node -}}
{{- $wrong := list -}}
{{- $budget := include "sluice.bytes" $node.budget | int64 -}}
{{- $limit := dig "limits" "memory" "" $node.resources -}}
{{- $names := include "sluice.nodeModels" . | fromJsonArray -}}
{{- $sum := 0 -}}
{{- range $names -}}
{{- $device := include "sluice.poolDevice" (dict "root" $ "name" .) -}}
{{- with (get $.Values.models .).size -}}{{- if has $device (list "" "host") -}}{{- $sum = add $sum (include "sluice.bytes" . | int64) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if and $node.pin (gt (int64 $sum) $budget) -}}
{{- $wrong = append $wrong (printf "node.budget: %v cannot hold %s of models (%s): make it larger, choose fewer with node.models, or set node.pin to false" $node.budget (include "sluice.mebibytes" $sum) (join ", " $names)) -}}
{{- end -}}
{{- if lt (include "sluice.bytes" $node.heap | int64) 67108864 -}}
{{- $wrong = append $wrong (printf "node.heap: %v is less than the 64Mi that a load wants free, so none would begin: set at least 64Mi" $node.heap) -}}
{{- end -}}
{{- if $limit -}}
{{- if lt (include "sluice.bytes" $limit | int64) (add $budget 67108864) -}}
{{- $least := include "sluice.mebibytes" (add $budget (include "sluice.bytes" $node.heap | int64)) -}}
{{- $wrong = append $wrong (printf "node.resources.limits.memory: %v cannot hold the budget of %v and the 64Mi that a load wants free, so the kernel would kill the daemon: set at least %s, or leave it out" $limit $node.budget $least) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateCsi" -}}
{{- $csi := .Values.node.csi -}}
{{- $wrong := list -}}
{{- if not .Values.node.securityContext.privileged -}}
{{- $wrong = append $wrong "node.securityContext.privileged: the API server demands it for mounts that pods are to see: set it, or turn node.csi.enabled off" -}}
{{- end -}}
{{- $longest := printf "%s/plugins_registry/%s-reg.sock" $csi.kubeletDirectory $csi.driverName -}}
{{- if gt (len $longest) 107 -}}
{{- $wrong = append $wrong (printf "node.csi.driverName: %s has more than the 107 bytes of a socket's path: choose a shorter name" $longest) -}}
{{- end -}}
{{- if hasPrefix (printf "%s/" $csi.kubeletDirectory) (printf "%s/" .Values.node.directory) -}}
{{- $wrong = append $wrong "node.directory: it lies in node.csi.kubeletDirectory, which the kubelet cleans: choose a folder of its own" -}}
{{- end -}}
{{- $known := include "sluice.nodeModels" . | fromJsonArray -}}
{{- $seen := list -}}
{{- range $i, $space := $csi.namespaces -}}
{{- if has $space.name $seen -}}
{{- $wrong = append $wrong (printf "node.csi.namespaces: '%s' is there twice: make one entry of them" $space.name) -}}
{{- end -}}
{{- $seen = append $seen $space.name -}}
{{- range default list $space.models -}}
{{- if not (or (regexMatch "[*?\\[]" .) (has . $known)) -}}
{{- $wrong = append $wrong (printf "node.csi.namespaces[%d].models: '%s' is not a model of the node: add it to models and node.models, or take it out here" $i .) -}}
{{- end -}}
{{- end -}}
{{- $audiences := list -}}{{- range $csi.tokenRequests -}}{{- $audiences = append $audiences .audience -}}{{- end -}}
{{- if and (has "token" (default list $space.credentials)) (not (has "sts.amazonaws.com" $audiences)) -}}
{{- $wrong = append $wrong (printf "node.csi.namespaces[%d].credentials: the kubelet hands no token to the driver: add {audience: sts.amazonaws.com} to node.csi.tokenRequests" $i) -}}
{{- end -}}
{{- if ne (has "token" (default list $space.credentials)) (not (empty $space.roleArn)) -}}
{{- $wrong = append $wrong (printf "node.csi.namespaces[%d]: tokens are exchanged for a role: give roleArn and credentials with token, or neither" $i) -}}
{{- end -}}
{{- if and $space.pool (not $.Values.node.pool.enabled) -}}
{{- $wrong = append $wrong (printf "node.csi.namespaces[%d].pool: the pool is off: set node.pool.enabled" $i) -}}
{{- end -}}
{{- if and $space.credentials (not $space.uriPrefixes) -}}
{{- $wrong = append $wrong (printf "node.csi.namespaces[%d].credentials: models by name are read as the daemon's are: name in uriPrefixes what '%s' may ask for" $i $space.name) -}}
{{- end -}}
{{- end -}}
{{- if and $csi.storageClass.create (not (or $csi.storageClass.parameters.model $csi.storageClass.parameters.uri)) -}}
{{- $wrong = append $wrong "node.csi.storageClass.parameters: what should its volumes hold? Set model or uri" -}}
{{- end -}}
{{- with .Values.tests.volume.model -}}
{{- if not (has . $known) -}}
{{- $wrong = append $wrong (printf "tests.volume.model: '%s' is not a model of the node: take one of node.models" .) -}}
{{- else if include "sluice.poolDevice" (dict "root" $ "name" .) -}}
{{- $wrong = append $wrong (printf "tests.volume.model: '%s' lies in the pool and has no files of its own to mount: take another" .) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
