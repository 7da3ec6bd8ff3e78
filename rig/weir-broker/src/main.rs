//! Starts a broker, prints its address, and ends it with standard input.

use std::io::{self, Read as _};

fn main() -> io::Result<()> {
    let broker = weir_broker::Broker::start();
    println!("{}", broker.address());
    // Nothing is written here: it ends when the other side closes it or dies.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
