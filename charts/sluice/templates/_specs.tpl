{{/*
Specs: what `models` of the values becomes. A model without a sink goes to modelsPath/NAME, one of the pool nowhere.
*/}}

{{/* dict "root" $ "name" NAME: where the pool has the model, as in "host" or "cuda:0"; "" if it does not go there. */}}
{{- define "sluice.poolDevice" -}}
{{- $sink := dig "sink" dict (default dict (get (default dict (get .root.Values.models .name)) "spec")) | default dict -}}
{{- if hasKey $sink "pool" -}}
{{- default "host" (default dict $sink.pool).device -}}
{{- end -}}
{{- end -}}

{{/* Names of the models that containers can load, as a JSON list: all but the pool's. */}}
{{- define "sluice.loadable" -}}
{{- $root := . -}}
{{- $names := list -}}
{{- range keys .Values.models | sortAlpha -}}
{{- if not (include "sluice.poolDevice" (dict "root" $root "name" .)) -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}

{{/* dict "root" $ "name" NAME ["ofNode" true]: one spec, as YAML. The node's config names the caches of all its models. */}}
{{- define "sluice.spec" -}}
{{- $root := .root -}}
{{- $model := get $root.Values.models .name -}}
{{- $spec := deepCopy (default dict $model.spec) -}}
{{- if not .ofNode -}}
{{- $_ := set $spec "source" (include "sluice.throughSource" (dict "root" $root "source" $spec.source) | fromJson) -}}
{{- end -}}
{{- if not (include "sluice.poolDevice" .) -}}
{{- if not (get $spec "sink") -}}
{{- $_ := set $spec "sink" (dict "tmpfs" (dict)) -}}
{{- end -}}
{{- with $spec.sink.tmpfs -}}
{{- else -}}
{{- $_ := set $spec.sink "tmpfs" dict -}}
{{- end -}}
{{- if not (get $spec.sink.tmpfs "path") -}}
{{- $_ := set $spec.sink.tmpfs "path" (printf "%s/%s" $root.Values.modelsPath .name) -}}
{{- end -}}
{{- end -}}
apiVersion: sluice/v1alpha1
kind: Model
metadata:
  name: {{ .name | quote }}
{{ toYaml $spec }}
{{- end -}}

{{/* dict "root" $ "names" LIST: several specs in one file. */}}
{{- define "sluice.specFile" -}}
{{- $root := .root -}}
{{- range $i, $name := .names -}}
{{- if $i }}
---
{{ end -}}
{{- include "sluice.spec" (dict "root" $root "name" $name) -}}
{{- end -}}
{{- end -}}

{{/* Names of the models that the prefetch Job loads, as a JSON list. */}}
{{- define "sluice.prefetchModels" -}}
{{- $all := include "sluice.loadable" . | fromJsonArray -}}
{{- default $all .Values.prefetch.models | toJson -}}
{{- end -}}

{{/* dict "root" $ "names" LIST: what these models take together, in bytes; 0 if one does not say. */}}
{{- define "sluice.sizeOf" -}}
{{- $root := .root -}}
{{- $sum := 0 -}}
{{- $known := true -}}
{{- range .names -}}
{{- $size := get (default dict (get $root.Values.models .)) "size" -}}
{{- if $size -}}
{{- $sum = add $sum (include "sluice.bytes" $size | int64) -}}
{{- else -}}
{{- $known = false -}}
{{- end -}}
{{- end -}}
{{- ternary $sum 0 $known -}}
{{- end -}}
