//! A socket in the place of another.

use std::io;
use std::os::fd::AsFd;

use super::{Batch, EventLoop, Kind, Phase, Turn};
use crate::LoopCounter;
use crate::{BoundSocket, ListenerId, sys};

impl EventLoop {
    /// Puts another socket in the place of a Unix listener's, whose file somebody has taken away. What the old one had
    /// accepted is handed over first; who is connected to a datagram socket sees an error and has to connect again, and
    /// connections of streams stay.
    ///
    /// # Errors
    ///
    /// If there is no such listener, it is not a Unix socket, the loop is draining, or epoll refuses the socket.
    pub fn replace(
        &mut self,
        id: ListenerId,
        socket: BoundSocket,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> io::Result<()> {
        let index = self.listeners.iter().position(|listener| listener.id == id);
        let Some(index) = index.filter(|_| socket.file.is_some() && !self.draining) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        self.empty_and_close(index as u32, handle);
        let kind = if socket.address.is_stream() {
            Kind::Acceptor {
                listener: index as u32,
            }
        } else {
            Kind::Datagram {
                listener: index as u32,
            }
        };
        let inode = sys::socket_inode(socket.fd.as_fd())?;
        let slot = self.take_slot(kind);
        if let Err(error) = self.epoll.add(socket.fd.as_fd(), self.token_of(slot)) {
            self.free_slot(slot);
            return Err(error);
        }
        let listener = &mut self.listeners[index];
        (listener.slot, listener.inode, listener.phase) = (slot, inode, Phase::Open);
        (listener.fd, listener.file) = (Some(socket.fd), socket.file);
        Ok(())
    }

    /// Takes what a Unix socket holds and closes it, as a drain does, at once.
    fn empty_and_close(&mut self, index: u32, handle: &mut impl FnMut(Batch<'_>)) {
        let listener = &mut self.listeners[index as usize];
        listener.phase = Phase::Draining;
        if let Some(fd) = &listener.fd {
            self.counters[LoopCounter::SystemCalls] += 1;
            // An error would mean that it is not open.
            let _ = sys::shutdown_read(fd.as_fd());
        }
        let is_stream = listener.address.is_stream();
        while self.listeners[index as usize].fd.is_some() {
            if is_stream {
                self.accept(index);
            } else {
                self.receive_datagrams(index, &mut Turn::default(), handle);
            }
        }
    }
}
