// Package worker is what the Go peers share with the benchmark's other workers: a job as JSON in the
// first argument, a result as JSON on stdout, and times on the machine's boot clock.
package worker

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Job is what one worker has to do. Times are in seconds.
type Job struct {
	Kind      string   `json:"kind"`
	Variant   string   `json:"variant"`
	Addresses []string `json:"addresses"`
	Username  string   `json:"username"`
	Password  string   `json:"password"`
	Lock      string   `json:"lock"`
	Count     int      `json:"count"`
	WarmUp    int      `json:"warm_up"`
	Tasks     int      `json:"tasks"`
	FirstTask int      `json:"first_task"`
	Hold      float64  `json:"hold"`
	Rest      float64  `json:"rest"`
	StartAt   float64  `json:"start_at"`
	Seconds   float64  `json:"seconds"`
}

// Read returns the job of this process.
func Read() Job {
	if len(os.Args) != 2 {
		log.Fatal("one argument: the job as JSON; `make bench` calls this program")
	}
	var job Job
	Must(json.Unmarshal([]byte(os.Args[1]), &job))
	return job
}

// Must ends the worker: a benchmark with an error has no result.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Emit prints the result.
func Emit(result any) {
	text, err := json.Marshal(result)
	Must(err)
	fmt.Println(string(text))
}

// Boot is the time on CLOCK_BOOTTIME, which all processes of the machine share.
func Boot() float64 {
	var t unix.Timespec
	Must(unix.ClockGettime(unix.CLOCK_BOOTTIME, &t))
	return float64(t.Nano()) / 1e9
}

// Pause sleeps for some seconds.
func Pause(seconds float64) {
	if seconds > 0 {
		time.Sleep(time.Duration(seconds * 1e9))
	}
}

// Tenures collects who held the lock, from when to when.
type Tenures struct {
	mutex sync.Mutex
	List  [][3]float64
}

// Add is safe to call from several tasks.
func (t *Tenures) Add(task int, began, ended float64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.List = append(t.List, [3]float64{float64(task), began, ended})
}
