//! The running agent.

use super::Finding;
use crate::cli::agent::{answering, fetch, is_given_in};
use weir_config::Role;
use weir_status::losses::{self, Loss};
use weir_status::status::Status;
use weir_system::config::Loaded;

const CHECK: &str = "agent";

/// Whether an agent or a merge runs, is ready, and has applied its configuration.
pub fn look(loaded: &Loaded, role: Role) -> (Option<Status>, Vec<Finding>) {
    let addresses = &loaded.config.addresses.admin;
    let Some(address) = answering(addresses, is_given_in(loaded), role) else {
        let found = "admin is off, so the agent cannot be asked";
        return (None, vec![Finding::skipped(CHECK, "admin", found)]);
    };
    let subject = format!("http://{address}");
    let answer = fetch(address, "/api/v1/status");
    let status: Status = match answer.map(|body| serde_json::from_str(&body)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            let found = format!("another version of weir answers: {error}");
            let remedy = "run the doctor of the running version";
            return (None, vec![Finding::error(CHECK, subject, found).remedy(remedy)]);
        }
        Err(failure) => {
            let remedy = "start it, or name its address with --admin and its file with --config; the next checks assume that it is stopped";
            return (
                None,
                vec![Finding::warning(CHECK, subject, failure.message).remedy(remedy)],
            );
        }
    };
    let mut findings = vec![match &status.not_ready {
        None => Finding::fine(
            CHECK,
            &subject,
            format!(
                "weir {} is ready, pid {}",
                status.process.version, status.process.pid
            ),
        ),
        Some(why) => {
            Finding::error(CHECK, &subject, format!("not ready: {why}")).remedy("see the agent's log")
        }
    }];
    findings.extend(reload(&status));
    for imbalance in status.imbalances() {
        let remedy = "this is a bug in weir: report it with the output of `weir status --json`";
        findings.push(Finding::error("books", &subject, imbalance).remedy(remedy));
    }
    (Some(status), findings)
}

fn reload(status: &Status) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(error) = &status.reload.last_error {
        let found = format!("the last reload failed: {error}");
        findings
            .push(Finding::error("reload", "configuration", found).remedy("`weir check` validates the file"));
    }
    let waiting = &status.reload.waiting_for_restart;
    if !waiting.is_empty() {
        let keys: Vec<String> = waiting.clone();
        let found = format!("changed, needs a restart: {}", keys.join(", "));
        findings.push(Finding::warning("reload", "configuration", found).remedy("restart weir"));
    }
    findings
}

/// Losses, refusals and degradations since the start.
pub fn losses(status: &Status) -> Vec<Finding> {
    let finding = |loss: Loss| {
        let place = match loss.place.as_str() {
            "" => "agent",
            place => place,
        };
        let since = if loss.is_counter { " since the start" } else { "" };
        let number = weir_units::counted(loss.count as u64, loss.unit);
        let found = format!("{number}{since}: {}", loss.meaning);
        Finding::warning("losses", place, found).remedy(loss.remedy)
    };
    losses::losses(status).into_iter().map(finding).collect()
}
