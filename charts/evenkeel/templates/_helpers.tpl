{{- define "evenkeel.name" -}}
{{- if contains "evenkeel" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-evenkeel" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "evenkeel.etcd" -}}{{ include "evenkeel.name" . }}-etcd{{- end }}

{{- define "evenkeel.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: evenkeel
{{- end }}

{{- define "evenkeel.operator.selector" -}}
app.kubernetes.io/name: evenkeel-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "evenkeel.etcd.selector" -}}
app.kubernetes.io/name: evenkeel-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "evenkeel.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "evenkeel.storeImage" -}}
{{ .Values.storeImage.repository }}:{{ .Values.storeImage.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The namespaces that are served, separated by commas; none means all. */}}
{{- define "evenkeel.namespaces" -}}
{{- if eq .Values.rbac.scope "namespace" }}{{ join "," (.Values.rbac.namespaces | default (list .Release.Namespace)) }}{{ end -}}
{{- end }}

{{- define "evenkeel.scheme" -}}{{ ternary "https" "http" .Values.tls.enabled }}{{- end }}

{{- define "evenkeel.certManager" -}}
{{- if and .Values.tls.enabled (eq .Values.tls.source "cert-manager") }}yes{{ end -}}
{{- end }}

{{- /* The Secret with what the operator shows to etcd, where there is one. */}}
{{- define "evenkeel.etcdSecret" -}}
{{- if not .Values.etcd.bundled }}{{ .Values.etcd.external.secretName }}
{{- else if include "evenkeel.certManager" . }}{{ include "evenkeel.etcd" . }}-client
{{- end }}
{{- end }}

{{- define "evenkeel.endpoints" -}}
{{- if .Values.etcd.bundled }}
{{- $root := . }}
{{- $urls := list }}
{{- range $i := until (int .Values.etcd.members) }}
{{- $urls = append $urls (printf "%s://%s-%d.%s.%s.svc:2379" (include "evenkeel.scheme" $root) (include "evenkeel.etcd" $root) $i (include "evenkeel.etcd" $root) $root.Release.Namespace) }}
{{- end }}
{{- join "," $urls }}
{{- else }}
{{- join "," (required "etcd.external.endpoints is empty: name an etcd, or set etcd.bundled=true" .Values.etcd.external.endpoints) }}
{{- end }}
{{- end }}

{{- define "evenkeel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "evenkeel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "evenkeel.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
