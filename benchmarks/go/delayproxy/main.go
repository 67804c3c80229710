// delayproxy puts a round trip between clients and the servers behind it.
//
//	delayproxy -delay 500us HOST:PORT ...
//
// Every byte is passed on `delay` after it arrived, in both directions. The first line on stdout is
// a JSON list with one listening address for each target.
//
// One thread, epoll and a timerfd: Go's own timers go by whole milliseconds when a process idles.
// All bytes wait for the same time, so the queue of what waits is first in, first out.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

type end struct {
	fd      int
	other   *end
	backlog []byte // what the kernel did not take yet
	blocked bool   // watched for room to write
	closed  bool
}

type chunk struct {
	due  int64
	to   *end
	data []byte // none: the other side closed
}

type proxy struct {
	epoll, timer int
	delay        int64
	listeners    map[int]unix.SockaddrInet4
	ends         map[int]*end
	queue        []chunk
	buffer       [64 << 10]byte
}

func must(err error, what string) {
	if err != nil {
		log.Fatalf("delayproxy: %s: %v", what, err)
	}
}

func now() int64 {
	var t unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t), "clock_gettime")
	return t.Nano()
}

func main() {
	delay := flag.Duration("delay", 500*time.Microsecond, "how long every byte waits, each way")
	flag.Parse()
	runtime.LockOSThread()
	p := newProxy(delay.Nanoseconds())
	addresses := []string{}
	for _, target := range flag.Args() {
		addresses = append(addresses, p.listen(target))
	}
	must(json.NewEncoder(os.Stdout).Encode(addresses), "stdout")
	p.run()
}

func newProxy(delay int64) *proxy {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must(err, "epoll_create")
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	must(err, "timerfd_create")
	p := &proxy{epoll: epoll, timer: timer, delay: delay,
		listeners: map[int]unix.SockaddrInet4{}, ends: map[int]*end{}}
	p.watch(unix.EPOLL_CTL_ADD, timer, unix.EPOLLIN)
	return p
}

func (p *proxy) watch(operation, fd int, events uint32) {
	event := unix.EpollEvent{Events: events, Fd: int32(fd)}
	must(unix.EpollCtl(p.epoll, operation, fd, &event), "epoll_ctl")
}

func (p *proxy) listen(target string) string {
	to, err := netip.ParseAddrPort(target)
	must(err, "target "+target)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	must(err, "socket")
	must(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), "bind")
	must(unix.Listen(fd, 1024), "listen")
	p.listeners[fd] = unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	p.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN)
	name, err := unix.Getsockname(fd)
	must(err, "getsockname")
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

func (p *proxy) run() {
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		must(err, "epoll_wait")
		for _, event := range events[:n] {
			p.handle(int(event.Fd), event.Events)
		}
		p.passOn()
	}
}

func (p *proxy) handle(fd int, events uint32) {
	if target, ok := p.listeners[fd]; ok {
		p.accept(fd, target)
		return
	}
	side, ok := p.ends[fd]
	if !ok {
		return // the timer, or an end that was closed within this turn
	}
	if events&unix.EPOLLOUT != 0 {
		p.flush(side)
	}
	if events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 && !side.closed {
		p.read(side)
	}
}

func (p *proxy) accept(listener int, target unix.SockaddrInet4) {
	client, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	server, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err, "socket")
	// On loopback the kernel answers for the server, also for one that stands still.
	if err := unix.Connect(server, &target); err != nil {
		unix.Close(client)
		unix.Close(server)
		return
	}
	near, far := &end{fd: client}, &end{fd: server}
	near.other, far.other = far, near
	for _, side := range []*end{near, far} {
		must(unix.SetNonblock(side.fd, true), "nonblock")
		must(unix.SetsockoptInt(side.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), "nodelay")
		p.ends[side.fd] = side
		p.watch(unix.EPOLL_CTL_ADD, side.fd, unix.EPOLLIN)
	}
}

func (p *proxy) read(from *end) {
	n, err := unix.Read(from.fd, p.buffer[:])
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	var data []byte
	if n > 0 {
		data = append(data, p.buffer[:n]...)
	} else {
		p.watch(unix.EPOLL_CTL_DEL, from.fd, 0)
		from.closed = true
	}
	p.queue = append(p.queue, chunk{now() + p.delay, from.other, data})
	if len(p.queue) == 1 {
		p.arm()
	}
}

func (p *proxy) arm() {
	at := unix.NsecToTimespec(p.queue[0].due)
	must(unix.TimerfdSettime(p.timer, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: at}, nil), "timerfd")
}

// passOn writes what has waited long enough. Setting the timer anew also clears that it went off.
func (p *proxy) passOn() {
	at, sent := now(), 0
	for sent < len(p.queue) && p.queue[sent].due <= at {
		next := p.queue[sent]
		if next.data == nil {
			p.close(next.to)
		} else if !next.to.closed {
			next.to.backlog = append(next.to.backlog, next.data...)
			p.flush(next.to)
		}
		sent++
	}
	if sent == 0 {
		return
	}
	p.queue = append(p.queue[:0], p.queue[sent:]...)
	if len(p.queue) > 0 {
		p.arm()
		return
	}
	var expired [8]byte
	_, _ = unix.Read(p.timer, expired[:])
}

func (p *proxy) flush(to *end) {
	if to.closed || len(to.backlog) == 0 {
		return
	}
	n, err := unix.Write(to.fd, to.backlog)
	if err != nil && err != unix.EAGAIN {
		p.close(to)
		return
	}
	to.backlog = append(to.backlog[:0], to.backlog[max(n, 0):]...)
	if blocked := len(to.backlog) > 0; blocked != to.blocked {
		to.blocked = blocked
		events := uint32(unix.EPOLLIN)
		if blocked {
			events |= unix.EPOLLOUT
		}
		p.watch(unix.EPOLL_CTL_MOD, to.fd, events)
	}
}

// close ends both sides of a connection.
func (p *proxy) close(side *end) {
	for _, one := range []*end{side, side.other} {
		if _, open := p.ends[one.fd]; open && p.ends[one.fd] == one {
			one.closed = true
			delete(p.ends, one.fd)
			unix.Close(one.fd)
		}
	}
}
