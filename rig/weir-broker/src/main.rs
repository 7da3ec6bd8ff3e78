//! Starts a broker, prints its address, and ends it when standard input closes.

use std::io::{self, Read as _};

fn main() -> io::Result<()> {
    let broker = weir_broker::Broker::start();
    println!("{}", broker.address());
    // Nothing is read: this returns when the other side closes the pipe or dies.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
