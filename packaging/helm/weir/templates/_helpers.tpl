{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "weir.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "weir.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What writes into directories of the node belongs to root there. */}}
{{- define "weir.isRoot" -}}
{{- if or .Values.socket.enabled .Values.state.enabled -}}true{{- end -}}
{{- end -}}

{{/* weir.yaml: the operator's configuration with what the chart sets. */}}
{{- define "weir.config" -}}
{{- $set := dict "admin" (printf "*:%v" .Values.admin.port) -}}
{{- if .Values.admin.hosts -}}{{- $_ := set $set "admin_hosts" .Values.admin.hosts -}}{{- end -}}
{{- $_ := set $set "udp" (ternary (list (printf "*:%v" .Values.udp.port)) (list) .Values.udp.enabled) -}}
{{- if .Values.socket.enabled -}}{{- $_ := set $set "uds" (list (printf "/run/weir/%s" .Values.socket.name)) -}}{{- end -}}
{{- if .Values.state.enabled -}}{{- $_ := set $set "state_path" "/var/lib/weir" -}}{{- end -}}
{{- if .Values.origin.detection -}}{{- $_ := set $set "origin_detection" true -}}{{- end -}}
{{- if .Values.origin.kubelet -}}{{- $_ := set $set "origin_kubelet_tls_verify" .Values.origin.kubeletTlsVerify -}}{{- end -}}
{{- range $key, $value := $set -}}
{{- if hasKey $.Values.config $key -}}
{{- fail (printf "config.%s: the chart sets it; see values.yaml for the value that it comes from" $key) -}}
{{- end -}}
{{- end -}}
{{- merge $set .Values.config | toYaml -}}
{{- end -}}

{{/* Pods of the merge are not the DaemonSet's, so that they have another name. */}}
{{- define "weir.merge.selector" -}}
app.kubernetes.io/name: {{ include "weir.name" . | trunc 57 }}-merge
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.merge.labels" -}}
{{ include "weir.merge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* merge.yaml: the operator's configuration with what the chart sets. */}}
{{- define "weir.merge.config" -}}
{{- if not (dig "log" "brokers" false .Values.merge.config) -}}
{{- fail "merge.config.log.brokers: is missing; pods of a merge share a log on Apache Kafka" -}}
{{- end -}}
{{- $set := dict "admin" (printf "*:%v" .Values.merge.port) "state_path" "/var/lib/weir" -}}
{{- if .Values.admin.hosts -}}{{- $_ := set $set "admin_hosts" .Values.admin.hosts -}}{{- end -}}
{{- range $key, $value := $set -}}
{{- if hasKey $.Values.merge.config $key -}}
{{- fail (printf "merge.config.%s: the chart sets it; see values.yaml for the value that it comes from" $key) -}}
{{- end -}}
{{- end -}}
{{- merge $set .Values.merge.config | toYaml -}}
{{- end -}}

{{/* The resource of the API that stands for the kubelet's list of pods. `nodes/proxy` stands for all that the kubelet can do, commands in
containers included; kubelets before 1.33 know nothing else. */}}
{{- define "weir.kubeletRight" -}}
{{- if .Values.origin.kubeletRight -}}
nodes/{{ .Values.origin.kubeletRight }}
{{- else if semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version -}}
nodes/pods
{{- else -}}
nodes/proxy
{{- end -}}
{{- end -}}
