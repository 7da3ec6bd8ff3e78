//! Looking at profiles.

use super::common::ProfileArgs;
use crate::failure::Failure;
use weir_load::profiles;

pub fn profiles() -> Result<(), Failure> {
    for profile in profiles::all() {
        println!("{:<32} {}", profile.name, profile.about);
    }
    println!(
        "\ninterner-*, smp-* and dsd-* take @tags-unique or @tags-reused, and @smooth or @lading-burst: \
         interner-8MiB-10k@tags-unique"
    );
    Ok(())
}

#[derive(clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    profile: ProfileArgs,
}

pub fn show(args: ShowArgs) -> Result<(), Failure> {
    print!("{}", args.profile.profile()?.1.to_yaml());
    Ok(())
}
