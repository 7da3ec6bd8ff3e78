#!/usr/bin/env bash
# The chart: helm accepts it, invalid values are refused, and the Kubernetes API's schema accepts each object of each case.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
chart=$here/../helm/weir
tools=$here/../tools
fail() { echo "chart.sh: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work
# Go links neither again that is there already.
kept=${XDG_CACHE_HOME:-$HOME/.cache}/weir/tools
# The packages of Kubernetes are many; without optimisation the compiler takes a quarter less for them.
plain=()
for packages in k8s.io sigs.k8s.io helm.sh github.com; do plain+=("-gcflags=$packages/...=-N -l"); done
(cd "$tools" && go build "${plain[@]}" -o "$kept/helm" helm.sh/helm/v3/cmd/helm && go build "${plain[@]}" -o "$kept/chartcheck" . &&
  go test "${plain[@]}" ./...)
helm=$kept/helm
weir=${WEIR_BIN:-}

"$helm" lint --strict --quiet "$chart"
render() { "$helm" template release "$chart" --namespace metrics --kube-version 1.30.0 "$@"; }
file_of() { # NAME: that file of the ConfigMap among the objects on standard input
  awk -v name="  $1: |" '$0 == name { inside = 1; next } inside && /^ ? ? ?[^ ]/ { exit } inside { sub(/^    /, ""); print }'
}
number=0
case_of() { # NAME KINDS ARGUMENTS...: the rendered objects, and no others
  local name=$1 kinds=$2
  shift 2
  render "$@" >"$work/objects" || fail "$name: helm template"
  "$kept/chartcheck" <"$work/objects" >"$work/kinds" || fail "$name: an object is not valid"
  local made
  made=$(sed 's#/.*##' "$work/kinds" | sort | tr '\n' ' ' | sed 's/ $//')
  [ "$made" = "$kinds" ] || fail "$name: made $made, and not $kinds"
  # weir accepts the configuration in it.
  if [ -n "$weir" ]; then
    file_of weir.yaml <"$work/objects" >"$work/weir.yaml"
    env -i "$weir" check --config "$work/weir.yaml" >"$work/check" 2>&1 || { cat "$work/weir.yaml" "$work/check"; fail "$name: weir refuses the configuration"; }
  fi
  number=$((number + 1))
}
has() { grep -Eq -- "$1" "$work/objects" || fail "no $1"; }
has_not() { ! grep -Eq -- "$1" "$work/objects" || fail "$1 is there"; }
basis="ConfigMap DaemonSet Service Service ServiceAccount"

case_of "defaults" "$basis"
has 'internalTrafficPolicy: Local'; has 'readOnlyRootFilesystem: true'; has_not 'hostPID'; has 'drop: \[ALL\]'
case_of "restricted" "ConfigMap DaemonSet Service Service ServiceAccount" --set socket.enabled=false,state.enabled=false
has 'runAsNonRoot: true'; has_not 'hostPath'; has_not 'runAsUser: 0'; has 'automountServiceAccountToken: false'
case_of "socket alone" "ConfigMap DaemonSet Service ServiceAccount" --set udp.enabled=false
has 'path: /run/weir, type: DirectoryOrCreate'; has_not 'UDP'
case_of "host port" "ConfigMap DaemonSet Service ServiceAccount" --set udp.hostPort=true,udp.port=9125,service.enabled=false
has 'hostPort: 9125'
case_of "origins" "ClusterRole ClusterRoleBinding $basis" --set origin.detection=true,origin.kubelet=true
has 'hostPID: true'; has 'resources: \[nodes/proxy\]'; has 'automountServiceAccountToken: true'
case_of "origins, Kubernetes 1.33" "ClusterRole ClusterRoleBinding $basis" --set origin.kubelet=true --kube-version 1.33.0
has 'resources: \[nodes/pods\]'; has_not 'nodes/proxy'
case_of "origins, older nodes" "ClusterRole ClusterRoleBinding $basis" --set origin.kubelet=true,origin.kubeletRight=proxy --kube-version 1.34.1
has 'resources: \[nodes/proxy\]'; has_not 'nodes/pods'
case_of "origins, newer nodes" "ClusterRole ClusterRoleBinding $basis" --set origin.kubelet=true,origin.kubeletRight=pods
has 'resources: \[nodes/pods\]'; has_not 'nodes/proxy'
case_of "monitoring" "ConfigMap ConfigMap DaemonSet PrometheusRule Service Service ServiceAccount ServiceMonitor" \
  --set serviceMonitor.enabled=true,alerts.enabled=true,dashboard.enabled=true,serviceMonitor.labels.release=prometheus
has 'alert: WeirOutputFailing'; has 'grafana_dashboard'; has 'weir-overview.json'
case_of "outputs and secrets" "$basis" -f - <<'VALUES'
config:
  bucket_width: 15s
  outputs:
    remote_write: { url: "https://prometheus.example.org/api/v1/write" }
    prometheus: { enabled: false }
env:
  - name: DD_API_KEY
    valueFrom: { secretKeyRef: { name: datadog, key: api-key } }
envFrom:
  - secretRef: { name: more }
VALUES
has 'bucket_width: 15s'; has 'secretKeyRef'
case_of "network" "ConfigMap DaemonSet NetworkPolicy Service Service ServiceAccount" -f - <<'VALUES'
networkPolicy:
  enabled: true
  adminFrom:
    - namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: monitoring } }
admin: { port: 9127, hosts: [weir.example.org] }
VALUES
has 'containerPort: 9127'; has 'kubernetes.io/metadata.name: monitoring'; has 'port: admin, protocol: TCP'
# A command in the pod looks for the agent at the port of the chart: nobody listens there now.
has 'value: /etc/weir/weir.yaml'
if [ -n "$weir" ]; then
  code=0; env -i WEIR_CONFIG="$work/weir.yaml" "$weir" status >"$work/log" 2>&1 || code=$?
  [ "$code" != 0 ] && grep -q ':9127' "$work/log" || { cat "$work/log"; fail "a command does not find the port: exit code $code"; }
fi
case_of "network alone" "ConfigMap DaemonSet NetworkPolicy Service Service ServiceAccount" --set networkPolicy.enabled=true
has_not 'port: admin, protocol: TCP'
case_of "network and scrape" "ConfigMap DaemonSet NetworkPolicy Service Service ServiceAccount ServiceMonitor" \
  --set networkPolicy.enabled=true,serviceMonitor.enabled=true
has 'port: admin, protocol: TCP'; has_not 'from:'
case_of "a merge" "ConfigMap ConfigMap DaemonSet NetworkPolicy NetworkPolicy Service Service Service ServiceAccount ServiceMonitor ServiceMonitor StatefulSet" -f - <<'VALUES'
serviceMonitor: { enabled: true }
networkPolicy: { enabled: true }
config:
  outputs: { kafka: { brokers: ["kafka:9092"] } }
merge:
  enabled: true
  replicas: 3
  image: { tag: "1.2" }
  storage: { size: 10Gi, className: fast }
  config:
    log: { brokers: ["kafka:9092"] }
    outputs: { remote_write: { url: "https://prometheus.example.org/api/v1/write" } }
VALUES
has 'image: "weir-kafka:1.2"'; has 'replicas: 3'; has 'storageClassName: fast'; has 'fsGroup: 65532'; has 'app.kubernetes.io/name: weir-merge'
if [ -n "$weir" ]; then
  file_of merge.yaml <"$work/objects" >"$work/merge.yaml"
  env -i "$weir" merge --check --config "$work/merge.yaml" >"$work/check" 2>&1 || { cat "$work/merge.yaml" "$work/check"; fail "weir merge refuses the configuration"; }
fi
case_of "names and accounts of one's own" "ClusterRole ClusterRoleBinding ConfigMap DaemonSet Service Service" \
  --set fullnameOverride=agent,serviceAccount.create=false,serviceAccount.name=mine,origin.kubelet=true
has 'serviceAccountName: mine'; has 'name: agent$'
case_of "pods of one's own" "$basis" -f - <<'VALUES'
image: { repository: registry.example.org/weir, tag: "1.2", pullPolicy: Always }
imagePullSecrets: [{ name: registry }]
priorityClassName: system-node-critical
nodeSelector: { kubernetes.io/os: linux }
tolerations: []
podLabels: { team: metrics }
podAnnotations: { a: b }
resources: {}
extraVolumes: [{ name: ca, secret: { secretName: ca } }]
extraVolumeMounts: [{ name: ca, mountPath: /etc/ca }]
affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchExpressions: [{ key: k, operator: Exists }] }] } } }
VALUES
has 'registry.example.org/weir:1.2'; has 'mountPath: /etc/ca'

refused() { # WORD ARGUMENTS...
  local word=$1
  shift
  ! render "$@" >"$work/log" 2>&1 || fail "helm takes $*"
  grep -q -- "$word" "$work/log" || { cat "$work/log"; fail "the refusal of $* does not name $word"; }
}
refused 'sockets' --set sockets.enabled=true
refused 'port' --set udp.port=70000
refused 'kubeletRight' --set origin.kubeletRight=all
refused 'hostDirectory' --set socket.hostDirectory=relative
refused 'internalTrafficPolicy' --set service.internalTrafficPolicy=Sometimes
refused 'config.outputs.prometheus.enabled' --set serviceMonitor.enabled=true,config.outputs.prometheus.enabled=false
refused 'log.brokers' --set merge.enabled=true
refused 'merge.config.admin' --set 'merge.enabled=true,merge.config.admin=x,merge.config.log.brokers={kafka:9092}'
refused 'config.udp' --set 'config.udp={0.0.0.0:1}'
echo "chart.sh: $number cases passed"
