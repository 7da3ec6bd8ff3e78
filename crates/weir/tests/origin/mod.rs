//! Origin detection with the real binary: processes in real control groups, the API of a real Podman and a real containerd, a
//! kubelet on TLS, and everything that can go wrong with them.

mod agent;
mod allowed;
mod cgroup;
mod faults;
mod kubelet;
mod messages;
mod runtimes;
