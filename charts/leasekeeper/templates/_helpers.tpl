{{- define "leasekeeper.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "leasekeeper.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "leasekeeper.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "leasekeeper.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* 50 characters and this suffix fit into the 63 of a label and of a Service's name. */ -}}
{{- define "leasekeeper.operatorName" -}}
{{ include "leasekeeper.fullname" . }}-operator
{{- end -}}

{{- define "leasekeeper.serviceAccountName" -}}
{{- default (include "leasekeeper.operatorName" .) .Values.operator.serviceAccount.name -}}
{{- end -}}

{{- /* Cluster-wide objects carry the namespace too: two releases of one name in two namespaces. */ -}}
{{- define "leasekeeper.clusterName" -}}
{{ include "leasekeeper.fullname" . }}-{{ .Release.Namespace }}
{{- end -}}

{{- define "leasekeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ include "leasekeeper.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "leasekeeper.labels" -}}
{{ include "leasekeeper.selectorLabels" . }}
app.kubernetes.io/part-of: leasekeeper
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* An image's full name. Called with a list of the root context and the image's values. */ -}}
{{- define "leasekeeper.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}
