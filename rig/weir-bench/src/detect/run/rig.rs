//! Common to all replicates of a run.

use super::{DetectError, Prepared};
use crate::detect::capture::{self, Header};
use crate::detect::record::ARMS;
use crate::detect::replicate::Replicate;
use crate::detect::targets::ArmProgram;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_regress::plan::PlannedPair;
use weir_rig_base::process;

pub struct Rig<'a> {
    arms: &'a [ArmProgram; 2],
    run_id: String,
    program: PathBuf,
    cpus: Option<Vec<usize>>,
}

impl<'a> Rig<'a> {
    pub fn new(
        prepared: &[Prepared],
        arms: &'a [ArmProgram; 2],
        run_id: String,
    ) -> Result<Rig<'a>, DetectError> {
        Ok(Rig {
            arms,
            run_id,
            program: std::env::current_exe().map_err(DetectError::failed)?,
            cpus: cpus_of_the_rig(prepared),
        })
    }

    /// Keeps this program off the target's core.
    pub fn pin(&self) {
        if let Some(cpus) = &self.cpus {
            let _ = process::pin(cpus);
        }
    }

    /// One arm of a pair, by number and directory of the attempt.
    pub fn replicate<'r>(
        &'r self,
        p: &'r Prepared,
        planned: &PlannedPair,
        arm: usize,
        (number, folder): (usize, &'r Path),
    ) -> Replicate<'r> {
        let program = &self.arms[arm];
        let header = Header {
            v: capture::VERSION,
            run: self.run_id.clone(),
            exp: p.name.clone(),
            arm: ARMS[arm].to_owned(),
            rep: number,
            pair: planned.pair,
            order: planned.order.name().to_owned(),
            seed: format!("{:016x}", planned.payload_seed),
            bin_sha256: program.info.sha256.clone(),
            started_unix_ns: 0,
            host: BTreeMap::new(),
        };
        Replicate {
            header,
            folder,
            experiment: &p.arms[arm],
            bin: &program.bin,
            files: p.case.files.as_deref(),
            seed: planned.payload_seed,
            padding: 0,
            program: &self.program,
            rig_cpus: self.cpus.as_deref(),
            rules: p.info.rules.of(arm),
            profile: None,
            barrier: None,
        }
    }
}

/// The CPUs without a target. One CPU cannot be divided.
fn cpus_of_the_rig(prepared: &[Prepared]) -> Option<Vec<usize>> {
    let experiments = prepared.iter().flat_map(|p| &p.arms);
    let of_targets: Vec<usize> = experiments
        .filter_map(|e| e.target.cpus.clone())
        .flatten()
        .collect();
    let mut rest = process::allowed_cpus();
    rest.retain(|cpu| !of_targets.contains(cpu));
    (!of_targets.is_empty() && !rest.is_empty()).then_some(rest)
}
