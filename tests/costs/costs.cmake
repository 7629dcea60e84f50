# Which tests ctest starts first where several run at once, so that no long one is left over for the
# end: seconds on two cores, roughly. What is not named costs what it took in earlier runs of the same build
# folder, in a new one nothing. `sort -k3 -nr Testing/Temporary/CTestCostData.txt` shows what all took.
# Of a fabric one runs at a time: they begin first.
set_tests_properties(
  fabric.planned_return_test fabric.planned_detour_test fabric.planned_test fabric.all_reduce_test
  fabric.nccl_planned_test fabric.hash_test fabric.store_silence_test fabric.containers_test
  fabric.cleanup_test
  PROPERTIES COST 200)
set_tests_properties(
  local.train_state_test local.train_run_test torch.jobs_test
  PROPERTIES COST 180)
set_tests_properties(
  local.kill_test torch.pytorch_suite_test
  PROPERTIES COST 120)
set_tests_properties(
  local.recovery_run_test local.device_run_test local.driver_processes_test
  local.driver_training_test launch.torchrun_test
  PROPERTIES COST 90)
set_tests_properties(
  local.experts_run_test local.layouts_test local.train_faults_test launch.mpirun_test
  launch.slurm_test torch.collectives_test torch.frameworks_test torch.groups_test
  torch.lifetime_test torch.meshes_test torch.package_test unit.checkpoint_layouts_test
  PROPERTIES COST 60)
set_tests_properties(
  local.ckpt_dcp_run_test local.ckpt_huggingface_run_test local.driver_diagnosis_test
  local.driver_etcd_test local.init_bench_test local.weft_run_test nccl.torch_test
  observe.interop_test torch.driver_test torch.faults_test torch.features_test torch.hosts_test
  PROPERTIES COST 40)
set_tests_properties(
  local.checkpoint_tiers_run_test local.conformance_test local.conformance_faults_test
  local.generate_run_test local.overlap_run_test local.pair_conformance_test
  local.pair_conformance_test_rc local.store_processes_test local.unauthenticated_peers_test
  local.unchanged_test local.verbs_conformance_test local.weft_init_test
  PROPERTIES COST 30)
