{{/*
What the schema cannot see: every complaint names the value and says what to do, and all are told at once.
*/}}

{{- define "sluice.validate" -}}
{{- $wrong := concat
    (include "sluice.validateModels" . | fromJsonArray)
    (include "sluice.validatePrefetch" . | fromJsonArray) -}}
{{- if $wrong -}}
{{- fail (printf "\n\nsluice: %d of the values cannot be right:\n  * %s\n" (len $wrong) (join "\n  * " $wrong)) -}}
{{- end -}}
{{- end -}}

{{- define "sluice.validateModels" -}}
{{- $wrong := list -}}
{{- range $name, $model := .Values.models -}}
{{- $path := dig "sink" "tmpfs" "path" "" (default dict $model.spec) | toString -}}
{{- if and $path (not (hasPrefix (printf "%s/" $.Values.modelsPath) $path)) (not (contains "${" $path)) -}}
{{- $wrong = append $wrong (printf "models.%s.spec.sink.tmpfs.path '%s' is not below modelsPath '%s', the only place that loaders can write: leave it out, or change modelsPath" $name $path $.Values.modelsPath) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sluice.validatePrefetch" -}}
{{- $prefetch := .Values.prefetch -}}
{{- $wrong := list -}}
{{- if $prefetch.enabled -}}
{{- if not .Values.models -}}
{{- $wrong = append $wrong "prefetch.enabled: there are no models to load: add them to models" -}}
{{- end -}}
{{- range $prefetch.models -}}
{{- if not (hasKey $.Values.models .) -}}
{{- $wrong = append $wrong (printf "prefetch.models: '%s' is not in models: add it there, or take it out here" .) -}}
{{- end -}}
{{- end -}}
{{- if not (or $prefetch.volume $prefetch.claim.create) -}}
{{- $wrong = append $wrong "prefetch.enabled: no place to load into: name a claim in prefetch.volume, as in {persistentVolumeClaim: {claimName: models}}, or let the chart make one with prefetch.claim.create" -}}
{{- end -}}
{{- if and $prefetch.claim.create (not $prefetch.volume) (not $prefetch.claim.size) -}}
{{- $wrong = append $wrong "prefetch.claim.create: the claim needs a size: set prefetch.claim.size, as in 100Gi" -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
