//! What simulated guests have beside a process: console, devices, figures, no display.

use super::*;

#[async_trait]
impl GuestConsole for SimCompute {
    async fn open(&self, vm: VmUuid, port: GuestPort) -> Result<Box<dyn GuestIo>, DriverError> {
        let open = || if self.look(vm).is_running() { Ok(()) } else { Err(not_running(vm)) };
        self.faults.call("compute.open", open).await?;
        let (ours, theirs) = tokio::io::duplex(CONSOLE_BYTES);
        // What is spawned ends when the other half is dropped.
        match port {
            GuestPort::Console | GuestPort::Vnc => drop(tokio::spawn(echo(theirs))),
            GuestPort::Metadata => self.guests.offer_metadata_port(vm, theirs),
            GuestPort::GuestAgent => {
                drop(tokio::spawn(self.guests.clone().answer_as_agent(vm, theirs)));
            }
        }
        Ok(Box::new(ours))
    }

    async fn agent_channel(&self, vm: VmUuid) -> Result<AgentChannel, DriverError> {
        if self.look(vm).is_running() {
            Ok(self.guests.agent_channel(vm))
        } else {
            Err(not_running(vm))
        }
    }

    /// Simulated guests keep no log.
    async fn console_log(&self, _vm: VmUuid, _from: Option<u64>) -> Result<Logged, DriverError> {
        Ok(Logged::default())
    }
}

#[async_trait]
impl GuestDevices for SimCompute {
    async fn info(&self, vm: VmUuid, types: &[String]) -> Result<Value, DriverError> {
        check_info_types(types)?;
        let info = || {
            let content = self.guests.content.lock();
            let guest = content.running.get(&vm).ok_or_else(|| not_running(vm))?;
            let status = guest.activity.word();
            Ok(json!({
                "status": { "status": status, "running": guest.activity == Activity::Running },
                "vnc": { "host": "127.0.0.1", "port": 5900 + guest.pid % 1000 },
            }))
        };
        self.faults.call("compute.info", info).await
    }

    /// Simulated guests do not hold their disks.
    async fn snapshot(
        &self,
        _vm: VmUuid,
        change: &SnapshotChange,
    ) -> Result<Vec<Role>, DriverError> {
        Ok(change.volumes().to_vec())
    }

    /// Nor do they make them larger; they only see it.
    async fn grow_disk(&self, vm: VmUuid, index: u32, size_bytes: u64) -> Result<(), DriverError> {
        let grow = || {
            if let Some(guest) = self.guests.content.lock().running.get_mut(&vm) {
                guest.grown.insert(index, size_bytes);
            }
            Ok(())
        };
        self.faults.call("compute.grow_disk", grow).await
    }

    async fn set_memory(&self, vm: VmUuid, ram_mib: u64) -> Result<(), DriverError> {
        let set = || {
            let mut content = self.guests.content.lock();
            let keeps = content.kept_memory.contains(&vm);
            if let Some(guest) = content.running.get_mut(&vm).filter(|_| !keeps) {
                guest.memory_mib = ram_mib.min(guest.ram_mib);
            }
            Ok(())
        };
        self.faults.call("compute.set_memory", set).await
    }

    async fn disks(&self, vm: VmUuid) -> Result<Option<GuestDisks>, DriverError> {
        let disks = || {
            self.guests.settle(self.clock.wall());
            let content = self.guests.content.lock();
            let Some(guest) = content.running.get(&vm) else { return Ok(None) };
            let slots = 1..=LAST_BAY;
            let present = guest
                .disks
                .iter()
                .map(|number| GuestDisk { number: *number, removable: slots.contains(number) });
            let free = slots.clone().filter(|number| !guest.disks.contains(number));
            Ok(Some(GuestDisks { present: present.collect(), free: free.collect() }))
        };
        self.faults.call("compute.disks", disks).await
    }

    async fn plug_disk(
        &self,
        vm: VmUuid,
        disk: &Disk,
        _described: &Value,
    ) -> Result<(), DriverError> {
        let plug = || {
            let mut content = self.guests.content.lock();
            let guest = content.running.get_mut(&vm).ok_or_else(|| not_running(vm))?;
            guest.disks.insert(disk.index);
            guest.disks_unsettled = true;
            Ok(())
        };
        self.faults.call("compute.plug_disk", plug).await
    }

    async fn unplug_disk(&self, vm: VmUuid, number: u32) -> Result<(), DriverError> {
        let unplug = || {
            let mut content = self.guests.content.lock();
            let keeps = content.kept_disks.contains(&(vm, number));
            let guest = content.running.get_mut(&vm).ok_or_else(|| not_running(vm))?;
            guest.disks_unsettled = true;
            if keeps && guest.disks.contains(&number) {
                let text = format!("the guest of VM {vm} did not give up disk {number}");
                return Err(DriverError::refused(Code::GuestRefused, text));
            }
            guest.disks.remove(&number);
            Ok(())
        };
        self.faults.call("compute.unplug_disk", unplug).await
    }

    fn settle_disks(&self, vm: VmUuid) {
        if let Some(guest) = self.guests.content.lock().running.get_mut(&vm) {
            guest.disks_unsettled = false;
        }
        self.guests.changed();
    }

    async fn nics(&self, vm: VmUuid) -> Result<Option<GuestNics>, DriverError> {
        let nics = || {
            self.guests.settle(self.clock.wall());
            let content = self.guests.content.lock();
            let Some(guest) = content.running.get(&vm) else { return Ok(None) };
            let present = guest.nics.iter().map(|(number, mac)| GuestNic {
                number: *number,
                mac: mac.clone(),
                removable: *number < SLOTS,
            });
            let free = (0..SLOTS).filter(|number| !guest.nics.contains_key(number)).collect();
            Ok(Some(GuestNics { present: present.collect(), free }))
        };
        self.faults.call("compute.nics", nics).await
    }

    async fn plug_nic(&self, vm: VmUuid, nic: &Attached) -> Result<(), DriverError> {
        let plug = || {
            let mut content = self.guests.content.lock();
            let guest = content.running.get_mut(&vm).ok_or_else(|| not_running(vm))?;
            guest.nics.insert(nic.nic.number, nic.nic.mac.clone());
            guest.nics_unsettled = true;
            Ok(())
        };
        self.faults.call("compute.plug_nic", plug).await
    }

    async fn unplug_nic(&self, vm: VmUuid, nic: &GuestNic) -> Result<(), DriverError> {
        let unplug = || {
            let mut content = self.guests.content.lock();
            let keeps = content.kept_nics.contains(&(vm, nic.number));
            let guest = content.running.get_mut(&vm).ok_or_else(|| not_running(vm))?;
            guest.nics_unsettled = true;
            if keeps && guest.nics.contains_key(&nic.number) {
                let text = format!("the guest of VM {vm} did not give up {}", nic.mac);
                return Err(DriverError::refused(Code::GuestRefused, text));
            }
            guest.nics.remove(&nic.number);
            Ok(())
        };
        self.faults.call("compute.unplug_nic", unplug).await
    }

    async fn set_link(&self, vm: VmUuid, nic: &Nic) -> Result<(), DriverError> {
        let set = || {
            let mut content = self.guests.content.lock();
            let guest = content.running.get_mut(&vm).ok_or_else(|| not_running(vm))?;
            guest.set_link(nic);
            Ok(())
        };
        self.faults.call("compute.set_link", set).await
    }

    fn settle_nics(&self, vm: VmUuid) {
        if let Some(guest) = self.guests.content.lock().running.get_mut(&vm) {
            guest.nics_unsettled = false;
        }
        self.guests.changed();
    }
}

#[async_trait]
impl GuestFacts for SimCompute {
    /// A tenth of a CPU, and nobody waits.
    async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError> {
        let observed = self.look(vm);
        let Some(live) = observed.live() else { return Ok(None) };
        let at_ms = self.now_ms();
        let cpu_ms = at_ms.saturating_sub(live.started_at_ms) / 10;
        Ok(Some(VmUsage {
            at_ms,
            started_at_ms: live.started_at_ms,
            booted_at_ms: live.booted_at_ms,
            cpu_ms: Some(cpu_ms),
            vcpu_ms: Some(cpu_ms),
            run_delay_ms: Some(0),
            rss_bytes: Some(RSS_BYTES),
            ..VmUsage::default()
        }))
    }

    /// One block read a second.
    async fn disk_usage(&self, vm: VmUuid) -> Result<DiskUsage, DriverError> {
        let usage = || {
            let observed = self.look(vm);
            let live = observed.live().ok_or_else(|| not_running(vm))?;
            let at_ms = self.now_ms();
            let reads = at_ms.saturating_sub(live.started_at_ms) / 1000;
            Ok(DiskUsage { at_ms, read_bytes: reads * 4096, reads, ..DiskUsage::default() })
        };
        self.faults.call("compute.disk_usage", usage).await
    }

    async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError> {
        let list = || {
            let content = self.guests.content.lock();
            let guest = content.running.get(&vm).ok_or_else(|| not_running(vm))?;
            let psinfo = json!({ "pr_pid": guest.pid, "pr_fname": "sim" });
            Ok(json!({ guest.pid.to_string(): { "psinfo": psinfo } }))
        };
        self.faults.call("compute.processes", list).await
    }
}

/// Simulated guests show nothing.
#[async_trait]
impl GuestDisplay for SimCompute {
    async fn screenshot(&self, vm: VmUuid) -> Result<Picture, DriverError> {
        let text = format!("VM {vm} is simulated and shows nothing");
        Err(DriverError::refused(Code::NotSupported, text))
    }

    async fn set_password(&self, vm: &VmRecord) -> Result<(), DriverError> {
        let set = || {
            if let Some(guest) = self.guests.content.lock().running.get_mut(&vm.uuid) {
                guest.password = vm.text("vnc_password").map(str::to_owned);
            }
            Ok(())
        };
        self.faults.call("compute.set_password", set).await
    }
}

async fn echo(mut stream: tokio::io::DuplexStream) {
    let mut buffer = [0; 1024];
    let mut answer = stream.write_all(CONSOLE_GREETING.as_bytes()).await;
    while answer.is_ok() {
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 => answer = stream.write_all(&buffer[..read]).await,
            _ => return,
        }
    }
}
