{{/*
What pods of this chart have in common. dict "root" $ "pod" SETTINGS: `pod` of the values with SETTINGS on top.
*/}}

{{/* Mappings are merged; lists and texts are replaced, by empty ones too. */}}
{{- define "sluice.podSettings" -}}
{{- $settings := deepCopy .root.Values.pod -}}
{{- range $key, $value := deepCopy (default dict .pod) -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $settings $key)) -}}
{{- $value = mergeOverwrite (get $settings $key) $value -}}
{{- end -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{/* dict "root" $ "pod" SETTINGS "component" NAME ["labels" MAP] ["annotations" MAP] */}}
{{- define "sluice.podMetadata" -}}
{{- $pod := include "sluice.podSettings" . | fromJson -}}
labels:
  {{- include "sluice.labels" . | nindent 2 }}
  {{- with merge (dict) (default dict .labels) $pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default dict .annotations) $pod.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* All of a pod's spec but containers, volumes and restartPolicy. Settings that are empty are left out. */}}
{{- define "sluice.podSpec" -}}
{{- $root := .root -}}
{{- $pod := include "sluice.podSettings" . | fromJson -}}
{{- $spec := dict "serviceAccountName" (include "sluice.serviceAccountName" $root) "automountServiceAccountToken" false "enableServiceLinks" false -}}
{{- with include "sluice.imagePullSecrets" $root | fromYamlArray -}}
{{- $_ := set $spec "imagePullSecrets" . -}}
{{- end -}}
{{- range $key, $value := omit $pod "labels" "annotations" -}}
{{- if $value -}}
{{- $_ := set $spec $key $value -}}
{{- end -}}
{{- end -}}
{{- if hasKey $spec "terminationGracePeriodSeconds" -}}
{{- $_ := set $spec "terminationGracePeriodSeconds" (int $spec.terminationGracePeriodSeconds) -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}
