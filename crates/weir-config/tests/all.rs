//! Configurations from files, variables and flags.

mod fleet_log;
mod load;
mod machine;
