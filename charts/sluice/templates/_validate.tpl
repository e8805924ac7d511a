{{/*
What the schema cannot see: every complaint names the value and says what to do, and all are told at once.
*/}}

{{- define "sluice.validate" -}}
{{- $wrong := concat
    (include "sluice.validateTags" . | fromJsonArray)
    (include "sluice.validateModels" . | fromJsonArray)
    (include "sluice.validatePrefetch" . | fromJsonArray)
    (include "sluice.validateBenchmark" . | fromJsonArray)
    (include "sluice.validateMetrics" . | fromJsonArray)
    (include "sluice.validateNetwork" . | fromJsonArray)
    (include "sluice.validateNode" . | fromJsonArray)
    (include "sluice.validateCaches" . | fromJsonArray)
    (include "sluice.validateSecrets" . | fromJsonArray) -}}
{{- if $wrong -}}
{{- fail (printf "\n\nsluice: %d of the values cannot be right:\n  * %s\n" (len $wrong) (join "\n  * " $wrong)) -}}
{{- end -}}
{{- end -}}

{{/* YAML makes 1.1 of 1.10, so no number is taken for a tag. */}}
{{- define "sluice.validateTags" -}}
{{- $wrong := list -}}
{{- range $path, $image := dict "image" .Values.image "caches.image" .Values.caches.image "node.csi.registrar" .Values.node.csi.registrar -}}
{{- if not (kindIs "string" $image.tag) -}}
{{- $wrong = append $wrong (printf "%s.tag: %v is a number, which may have lost digits: put it between quotes, or use --set-string" $path $image.tag) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateModels" -}}
{{- $wrong := list -}}
{{- range $name, $model := .Values.models -}}
{{- $path := dig "sink" "tmpfs" "path" "" (default dict $model.spec) | toString -}}
{{- if regexMatch "(^|/)[.][.](/|$)" $path -}}
{{- $wrong = append $wrong (printf "models.%s.spec.sink.tmpfs.path '%s' has '..' in it: write the path out" $name $path) -}}
{{- else if and $path (not (hasPrefix (printf "%s/" $.Values.modelsPath) $path)) (not (contains "${" $path)) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.sink.tmpfs.path '%s' is not below modelsPath '%s', the only place that loaders can write: leave it out, or change modelsPath" $name $path $.Values.modelsPath) -}}
{{- end -}}
{{- end -}}
{{- range $name, $model := .Values.models -}}
{{- $path := dig "sink" "caches" "path" "" (default dict $model.spec) | toString -}}
{{- if and $path (or (hasPrefix (printf "%s/" $.Values.modelsPath) $path) (not (regexMatch "^/[^/]+/[^/].*" $path))) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.sink.caches.path '%s' must be a folder in a volume of its own: choose one as /caches/%s, not below modelsPath" $name $path $name) -}}
{{- end -}}
{{- end -}}
{{- if lt (include "sluice.bytes" .Values.loader.heap | int64) 67108864 -}}
{{- $wrong = append $wrong (printf "loader.heap: %v is less than the 64Mi that a load wants free, so none would begin: set at least 64Mi" .Values.loader.heap) -}}
{{- end -}}
{{- $wrong = concat $wrong (include "sluice.validatePlaces" . | fromJsonArray) -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* No two models into one directory: each would wait for the other and then replace it. */}}
{{- define "sluice.validatePlaces" -}}
{{- $wrong := list -}}
{{- $places := dict -}}
{{- range $name := include "sluice.loadable" . | fromJsonArray -}}
{{- $place := (include "sluice.spec" (dict "root" $ "name" $name) | fromYaml).sink.tmpfs.path -}}
{{- if hasKey $places $place -}}
{{- $wrong = append $wrong (printf "models.%s and models.%s are both published into %s: change sink.tmpfs.path of one" (get $places $place) $name $place) -}}
{{- end -}}
{{- $_ := set $places $place $name -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validatePrefetch" -}}
{{- $prefetch := .Values.prefetch -}}
{{- $wrong := list -}}
{{- if $prefetch.enabled -}}
{{- if not (include "sluice.loadable" . | fromJsonArray) -}}
{{- $wrong = append $wrong "prefetch.enabled: there are no models to load: add them to models" -}}
{{- end -}}
{{- range $prefetch.models -}}
{{- if not (hasKey $.Values.models .) -}}
{{- $wrong = append $wrong (printf "prefetch.models: '%s' is not in models: add it there, or take it out here" .) -}}
{{- else if include "sluice.poolDevice" (dict "root" $ "name" .) -}}
{{- $wrong = append $wrong (printf "prefetch.models: '%s' lies in the pool of the node daemon, and the Job fills a volume: take it out here, or sink.pool out of its spec" .) -}}
{{- end -}}
{{- end -}}
{{- if not (or $prefetch.volume $prefetch.claim.create) -}}
{{- $wrong = append $wrong "prefetch.enabled: no place to load into: name a claim in prefetch.volume, as in {persistentVolumeClaim: {claimName: models}}, or let the chart make one with prefetch.claim.create" -}}
{{- end -}}
{{- if and $prefetch.claim.create (not $prefetch.volume) (not $prefetch.claim.size) -}}
{{- $wrong = append $wrong "prefetch.claim.create: the claim needs a size: set prefetch.claim.size, as in 100Gi" -}}
{{- end -}}
{{- end -}}
{{- if and $prefetch.schedule (not $prefetch.enabled) -}}
{{- $wrong = append $wrong "prefetch.schedule: nothing runs at that time: set prefetch.enabled, or clear the schedule" -}}
{{- end -}}
{{- if and $prefetch.enabled (not $wrong) -}}
{{- $wrong = include "sluice.validateRoom" . | fromJsonArray -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* Do the models fit into the prefetch volume, and into the memory limit if that volume is memory? */}}
{{- define "sluice.validateRoom" -}}
{{- $prefetch := .Values.prefetch -}}
{{- $wrong := list -}}
{{- $names := include "sluice.prefetchModels" . | fromJsonArray -}}
{{- $bytes := include "sluice.sizeOf" (dict "root" . "names" $names) | int64 -}}
{{- $size := include "sluice.mebibytes" $bytes -}}
{{- if and $bytes $prefetch.claim.create (not $prefetch.volume) -}}
{{- if lt (include "sluice.bytes" $prefetch.claim.size | int64) $bytes -}}
{{- $wrong = append $wrong (printf "prefetch.claim.size: %v cannot hold %s of models: make it larger, or choose fewer with prefetch.models" $prefetch.claim.size $size) -}}
{{- end -}}
{{- end -}}
{{- if eq (dig "emptyDir" "medium" "" $prefetch.volume) "Memory" -}}
{{- if not $bytes -}}
{{- range $names -}}
{{- if not (get $.Values.models .).size -}}
{{- $wrong = append $wrong (printf "models.%s.size: prefetch.volume is memory, and a memory limit must hold it: set what `sluice plan` tells" .) -}}
{{- end -}}
{{- end -}}
{{- else if lt (include "sluice.bytes" (dig "limits" "memory" 0 $prefetch.resources) | int64) (add $bytes 67108864) -}}
{{- $least := include "sluice.mebibytes" (add $bytes (include "sluice.bytes" .Values.loader.heap | int64)) -}}
{{- $wrong = append $wrong (printf "prefetch.resources.limits.memory: %v cannot hold %s of models and the 64Mi that a load wants free: set at least %s" (dig "limits" "memory" "none" $prefetch.resources) $size $least) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateBenchmark" -}}
{{- $benchmark := .Values.benchmark -}}
{{- $wrong := list -}}
{{- if $benchmark.enabled -}}
{{- if and $benchmark.model $benchmark.uri -}}
{{- $wrong = append $wrong "benchmark.model and benchmark.uri: only one can be measured: clear the other" -}}
{{- else if and $benchmark.model (not (hasKey .Values.models $benchmark.model)) -}}
{{- $wrong = append $wrong (printf "benchmark.model: '%s' is not in models: add it there, or set benchmark.uri" $benchmark.model) -}}
{{- else if and $benchmark.model (include "sluice.poolDevice" (dict "root" . "name" $benchmark.model)) -}}
{{- $wrong = append $wrong (printf "benchmark.model: '%s' lies in the pool of the node daemon, and what is measured is a load into a volume: set benchmark.uri" $benchmark.model) -}}
{{- else if not (or $benchmark.model $benchmark.uri) -}}
{{- $wrong = append $wrong "benchmark.enabled: nothing to measure with: set benchmark.model or benchmark.uri" -}}
{{- else if and $benchmark.uri (not $benchmark.size) (not (dig "limits" "memory" "" $benchmark.resources)) -}}
{{- $wrong = append $wrong "benchmark.size: loads land in memory: set what the URI takes (`sluice plan` shows it), or benchmark.resources.limits.memory" -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateMetrics" -}}
{{- $metrics := .Values.metrics -}}
{{- $wrong := list -}}
{{- if and $metrics.podMonitor.enabled $metrics.serviceMonitor.enabled -}}
{{- $wrong = append $wrong "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled: everything would be counted twice: turn one of them off" -}}
{{- end -}}
{{- if not (or $metrics.force (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- range list "podMonitor" "serviceMonitor" "rules" -}}
{{- if (get $metrics .).enabled -}}
{{- $wrong = append $wrong (printf "metrics.%s.enabled: the cluster does not know monitoring.coreos.com/v1: install the Prometheus operator first, or set metrics.force" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $metrics.rules.disabled -}}
{{- if not (contains (printf "alert: %s\n" .) ($.Files.Get "files/rules.yaml")) -}}
{{- $wrong = append $wrong (printf "metrics.rules.disabled: no alert is called '%s': docs/troubleshooting.md lists them" .) -}}
{{- end -}}
{{- end -}}
{{- range $alert, $threshold := $metrics.rules.thresholds -}}
{{- $found := "" -}}
{{- range ($.Files.Get "files/rules.yaml" | fromYaml).groups -}}{{- range .rules -}}
{{- if eq .alert $alert -}}{{- $found = ternary "number" "none" (regexMatch "> [0-9.]+\\s*$" .expr) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- if not $found -}}
{{- $wrong = append $wrong (printf "metrics.rules.thresholds: no alert is called '%s': docs/troubleshooting.md lists them" $alert) -}}
{{- else if eq $found "none" -}}
{{- $wrong = append $wrong (printf "metrics.rules.thresholds: the alert '%s' has no threshold: remove it there" $alert) -}}
{{- end -}}
{{- end -}}
{{- $kserve := .Values.kserve.clusterStorageContainer -}}
{{- if and $kserve.enabled (not (or $kserve.force (.Capabilities.APIVersions.Has "serving.kserve.io/v1alpha1"))) -}}
{{- $wrong = append $wrong "kserve.clusterStorageContainer.enabled: the cluster does not know serving.kserve.io/v1alpha1: install KServe first, or set kserve.clusterStorageContainer.force" -}}
{{- end -}}
{{- if and $kserve.enabled (not (dig "limits" "memory" "" $kserve.resources)) -}}
{{- $wrong = append $wrong "kserve.clusterStorageContainer.resources.limits.memory: KServe puts 1Gi where there is none: set what the largest model needs" -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validateNetwork" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $wrong := list -}}
{{- if and $policy.enabled $policy.egress.enabled (not $policy.egress.stores) (not $policy.egress.extra) -}}
{{- $wrong = append $wrong "networkPolicy.egress.enabled: loaders could reach no store: name them in networkPolicy.egress.stores, or turn networkPolicy.egress.enabled off" -}}
{{- end -}}
{{- if and $policy.enabled (not $policy.ingress.enabled) (not $policy.egress.enabled) -}}
{{- $wrong = append $wrong "networkPolicy.enabled: a policy without ingress and egress does nothing: turn one of them on, or networkPolicy.enabled off" -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{/* Values lie in the release, where everyone with rights on Secrets of the namespace reads them, and in many a repository. */}}
{{- define "sluice.validateSecrets" -}}
{{- $wrong := list -}}
{{- range $name, $model := .Values.models -}}
{{- $source := default dict (default dict $model.spec).source -}}
{{- range concat (list (default "" $source.uri)) (default list $source.mirrors) -}}
{{- if regexMatch "^[a-z0-9+]+://[^/@]*:[^/@]+@" (toString .) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.source: a URI holds a password: take it out and name a Secret in credentials" $name) -}}
{{- else if regexMatch "(?i)[?&](X-Amz-Signature|Signature|sig|token)=" (toString .) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.source: a URI holds a signature, which is a key: take it out and name a Secret in credentials" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $environments := dict "loader.extraEnv" .Values.loader.extraEnv "node.extraEnv" .Values.node.extraEnv "kserve.clusterStorageContainer.env" .Values.kserve.clusterStorageContainer.env -}}
{{- range $path, $env := $environments -}}
{{- range $env -}}
{{- if and .value (regexMatch "(?i)(SECRET|PASSWORD|PASSPHRASE|TOKEN|ACCESS_KEY)" .name) (not (regexMatch "(?i)_(FILE|PATH|URI)$" .name)) -}}
{{- $wrong = append $wrong (printf "%s: %s is given as a literal: name a Secret in credentials, or use valueFrom.secretKeyRef" $path .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.credentials.webIdentity.enabled (not .Values.credentials.webIdentity.roleArn) -}}
{{- $wrong = append $wrong "credentials.webIdentity.enabled: which role? Set credentials.webIdentity.roleArn" -}}
{{- end -}}
{{- if and .Values.caBundle.configMap .Values.caBundle.secret -}}
{{- $wrong = append $wrong "caBundle.configMap and caBundle.secret: only one can be the bundle: clear the other" -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
