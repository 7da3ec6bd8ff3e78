//! A socket in the place of another.

use std::io;

use super::{EventLoop, PacketBatch, Turn};
use crate::LoopCounter;
use crate::{BoundSocket, ListenerId};

impl EventLoop {
    /// Replaces the socket of a Unix listener whose file was removed. Packets that the old one had accepted are handed over first. Clients
    /// connected to a datagram socket get an error and must reconnect; connections of streams stay.
    ///
    /// # Errors
    ///
    /// If there is no such listener, it is not a Unix socket, the loop is draining, or epoll refuses the socket.
    pub fn replace(
        &mut self,
        id: ListenerId,
        socket: BoundSocket,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> io::Result<()> {
        let number = self.listeners.number_of(id);
        let Some(number) = number.filter(|_| socket.file.is_some() && !self.drain.is_on()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        self.empty_and_close(number, handle);
        let place = self.watch(&socket, number)?;
        self.listeners.get_mut(number).reopen(socket, place);
        Ok(())
    }

    /// Reads the rest of a Unix socket and closes it at once, as a drain does.
    fn empty_and_close(&mut self, number: u32, handle: &mut impl FnMut(PacketBatch<'_>)) {
        let listener = self.listeners.get_mut(number);
        listener.stop_for_successor(&mut self.counters[LoopCounter::SystemCalls]);
        let is_stream = listener.address.is_stream();
        while self.listeners.get(number).socket.is_some() {
            if is_stream {
                self.accept(number);
            } else {
                self.receive_datagrams(number, &mut Turn::default(), handle);
            }
        }
    }
}
